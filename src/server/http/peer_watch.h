// SPDX-License-Identifier: Apache-2.0
// PeerWatch: reads from a peer that is only to be written to, so that its end is seen at once. What
// it sends early, a further request, is kept in the connection's buffer, as far as that has space
// without growing; then the socket is looked at, some times a second, for its end. I/O thread only.
#pragma once
#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <functional>
#include <memory>

#include "server/http/stream.h"

namespace strata::server {

class PeerWatch {
 public:
  // `owner` keeps the stream and the buffer, `gone` runs when the peer has closed its side.
  PeerWatch(boost::asio::io_context& io, std::shared_ptr<void> owner, Stream& stream,
            boost::beast::flat_buffer& buffer, std::function<void()> gone);
  ~PeerWatch();  // after an exception: `gone` is run no more
  PeerWatch(const PeerWatch&) = delete;
  PeerWatch& operator=(const PeerWatch&) = delete;

  // Nothing is read afterwards, and nothing that was is lost.
  boost::asio::awaitable<void> stop();

 private:
  struct State;
  static void read(const std::shared_ptr<State>& state);
  static void look(const std::shared_ptr<State>& state);
  std::shared_ptr<State> state_;
};

}  // namespace strata::server
