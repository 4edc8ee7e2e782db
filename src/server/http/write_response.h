// SPDX-License-Identifier: Apache-2.0
// The answer to a request, of whatever kind, on its way out: held against its tenant's budget, then
// written in pieces: each has a deadline, and all of them the least rate. The time in which nothing
// is written, as while a disk is read, is not the peer's.
#pragma once
#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/clock.h"
#include "base/shared_limit.h"
#include "server/http/message.h"
#include "server/http/server.h"
#include "server/http/stream.h"

namespace strata::server {

struct Outgoing {
  Stream& stream;
  boost::asio::io_context& io;
  const HttpOptions& options;
};

class Pieces {
 public:
  static constexpr size_t kMost = 64 << 10;  // bytes of a piece

  explicit Pieces(Outgoing to) : to_(to) {}

  template <typename Buffers>
  boost::asio::awaitable<bool> write(const Buffers& buffers) {
    namespace asio = boost::asio;
    const double due =
        to_.options.body_timeout + static_cast<double>(written_) / to_.options.min_download_rate;
    if (seconds_ > due) co_return false;
    const double begin = now_seconds();
    to_.stream.expires_after(std::chrono::duration<double>(to_.options.body_timeout));
    boost::system::error_code fault;
    written_ += co_await asio::async_write(to_.stream, buffers,
                                           asio::redirect_error(asio::use_awaitable, fault));
    seconds_ += now_seconds() - begin;
    co_return !fault;
  }

 private:
  Outgoing to_;
  uint64_t written_ = 0;
  double seconds_ = 0;
};

// Whom a response answers, of a request that was read whole.
struct AnswerTo {
  Charge& charge;  // of the request
  std::string method;
  std::string path;
  bool is_http10 = false;
  bool keep_alive = true;
  std::shared_ptr<void> owner;        // of the connection's stream and buffer
  boost::beast::flat_buffer& buffer;  // what arrives meanwhile
  // A file is about to be sent, in a share of this tenant's.
  std::function<void(const std::string& tenant)> sends_file = {};
};

// Whether the connection may have a further request. `response` is what was sent.
boost::asio::awaitable<bool> send_response(Outgoing to, const AnswerTo& of, Response& response);

// Whether all of it was written; each piece has body_timeout seconds, and all of them come at the
// least rate.
boost::asio::awaitable<bool> write_response(Outgoing to, const Response& response, bool head_only,
                                            bool keep_alive);

// Sends as much of the text as goes without waiting, and closes.
void close_with_text(Stream::Protocol::socket& socket, const std::string& text);

}  // namespace strata::server
