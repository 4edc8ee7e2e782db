// SPDX-License-Identifier: Apache-2.0
// A response whose body is made while it is sent (http/body_stream.h): in chunks, or to a client of
// HTTP/1.0 as it comes, until the connection closes.
#pragma once
#include <boost/asio/awaitable.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <memory>
#include <string>

#include "base/account.h"
#include "server/http/message.h"
#include "server/http/write_response.h"

namespace strata::server {

// From now on what waits to be sent counts at the charge, which outlives the stream's way to its
// peer. Where there is no space for it the stream is closed, and the response says so.
void admit_stream(Charge& charge, bool is_post, Response& response);

struct StreamedTo {
  std::shared_ptr<void> owner;  // of the stream and the buffer
  boost::beast::flat_buffer& buffer;
  bool is_chunked = true;
  bool head_only = false;
  bool keep_alive = true;
};

// Whether all of it was written. The peer's end is seen at once, also while nothing is written; the
// body is closed when this returns.
boost::asio::awaitable<bool> write_stream(Outgoing to, const StreamedTo& how,
                                          const Response& response);

}  // namespace strata::server
