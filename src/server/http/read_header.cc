// SPDX-License-Identifier: Apache-2.0
#include "server/http/read_header.h"

#include <fmt/format.h>

#include <boost/asio/error.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <string_view>

namespace strata::server {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using boost::system::error_code;

error_code HeaderLines::read(std::string_view arrived) {
  for (const char c : arrived) {
    if (has_ended_) return {};
    // A folded field means one thing to who unfolds it and another to who does not.
    if (line_bytes_ == 0 && num_ > 0 && (c == ' ' || c == '\t')) return http::error::bad_obs_fold;
    if (c != '\n') {
      line_bytes_ += c == '\r' ? 0 : 1;
      continue;
    }
    has_ended_ = line_bytes_ == 0;
    line_bytes_ = 0;
    if (++num_ > kMaxFields + 2)
      return http::error::header_limit;  // also the first line and the last
  }
  return {};
}

namespace {

std::string_view newest(const boost::beast::flat_buffer& buffer, size_t count) {
  const asio::const_buffer all = buffer.data();
  return std::string_view(static_cast<const char*>(all.data()), all.size())
      .substr(all.size() - count);
}

}  // namespace

asio::awaitable<error_code> read_header(Incoming from, std::function<bool()> hold) {
  HeaderLines lines;
  for (size_t arrived = from.buffer.size();;) {
    error_code fault = lines.read(newest(from.buffer, arrived));
    if (fault) co_return fault;
    from.buffer.consume(from.parser.put(from.buffer.data(), fault));
    if (from.parser.is_header_done()) co_return error_code();
    if (fault && fault != http::error::need_more) co_return fault;
    arrived = co_await from.stream.async_read_some(
        from.buffer.prepare(kFirstRead), asio::redirect_error(asio::use_awaitable, fault));
    if (fault || arrived == 0) co_return asio::error::connection_aborted;
    from.buffer.commit(arrived);
    if (!hold()) co_return asio::error::no_buffer_space;
  }
}

bool wants_continue(const BodyParser& parser) {
  return parser.get().version() >= 11 && !parser.is_done() &&
         boost::beast::iequals(parser.get()[http::field::expect], "100-continue");
}

bool is_gone(const error_code& fault) { return fault == asio::error::connection_aborted; }

Response header_refusal(const error_code& fault) {
  if (fault == asio::error::no_buffer_space) {
    return busy_response(503, "there is no space for a header so long (--max-connection-bytes)");
  }
  if (fault == http::error::header_limit) {
    return error_response(431, fmt::format("the header has more than {} bytes, or more than {} "
                                           "fields",
                                           kMaxHeader, kMaxFields));
  }
  return error_response(400, fmt::format("not HTTP/1.1: {}", fault.message()));
}

}  // namespace strata::server
