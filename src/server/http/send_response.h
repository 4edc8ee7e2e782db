// SPDX-License-Identifier: Apache-2.0
// The answer to a request that was read whole, of whatever kind: held against its tenant's budget,
// then written.
#pragma once
#include <boost/asio/awaitable.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <memory>
#include <string>

#include "server/http/message.h"
#include "server/http/pieces.h"

namespace strata::server {

struct Answered {
  std::string tenant;
  std::string method;
  std::string path;
  bool is_http10 = false;
  bool keep_alive = true;
  std::shared_ptr<void> owner;        // of the connection's stream and buffer
  boost::beast::flat_buffer& buffer;  // what arrives meanwhile
};

// Whether the connection may have a further request. `response` is what was sent.
boost::asio::awaitable<bool> send_response(Outgoing to, const Answered& of, Response& response);

}  // namespace strata::server
