// SPDX-License-Identifier: Apache-2.0
#include "server/http/read_header.h"

#include <fmt/format.h>

#include <boost/asio/error.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>

namespace strata::server {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using boost::system::error_code;

asio::awaitable<error_code> read_header(Incoming from, std::function<bool()> hold) {
  for (;;) {
    error_code fault;
    from.buffer.consume(from.parser.put(from.buffer.data(), fault));
    if (from.parser.is_header_done()) co_return error_code();
    if (fault && fault != http::error::need_more) co_return fault;
    const size_t count = co_await from.stream.async_read_some(
        from.buffer.prepare(kFirstRead), asio::redirect_error(asio::use_awaitable, fault));
    if (fault || count == 0) co_return asio::error::connection_aborted;
    from.buffer.commit(count);
    if (!hold()) co_return asio::error::no_buffer_space;
  }
}

bool is_gone(const error_code& fault) { return fault == asio::error::connection_aborted; }

Response header_refusal(const error_code& fault) {
  if (fault == asio::error::no_buffer_space) {
    return busy_response(503, "there is no room for a header so long (--max-connection-bytes)");
  }
  return error_response(fault == http::error::header_limit ? 431 : 400,
                        fmt::format("not HTTP/1.1: {}", fault.message()));
}

}  // namespace strata::server
