// SPDX-License-Identifier: Apache-2.0
#include "server/http/body/read_body.h"

#include <algorithm>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <chrono>
#include <string>

#include "base/clock.h"

namespace strata::server {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using boost::system::error_code;

// How much to read at once: no more than the body still has, where that is known.
size_t read_size(const BodyParser& parser) {
  const auto left = parser.content_length_remaining();
  return left ? std::clamp<uint64_t>(*left, 512, kReadChunk) : kReadChunk / 4;
}

}  // namespace

asio::awaitable<std::optional<BodyFault>> read_body(const HttpOptions& options, Incoming from,
                                                    Turns& decompression, asio::io_context& io,
                                                    Request& request) {
  BodySink sink(options, body_limit(options, request.route), request);
  BodyParser& parser = from.parser;
  for (bool wants_more = from.buffer.size() == 0; !parser.is_done();
       wants_more = wants_more || from.buffer.size() == 0) {
    if (auto slow = sink.check_rate(now_seconds())) co_return slow;
    error_code fault;
    if (wants_more) {
      from.stream.expires_after(std::chrono::duration<double>(options.body_timeout));
      const size_t count = co_await from.stream.async_read_some(
          from.buffer.prepare(read_size(parser)), asio::redirect_error(asio::use_awaitable, fault));
      if (fault || count == 0) co_return BodyFault{-1, {}};
      from.buffer.commit(count);
    }
    parser.get().body() = {};
    const size_t used = parser.put(from.buffer.data(), fault);
    wants_more = fault == http::error::need_more;
    if (fault && !wants_more) {
      co_return BodyFault{400, "the body's chunked encoding is malformed: " + fault.message()};
    }
    std::string_view arrived = parser.get().body();
    auto refused = sink.take(arrived, from.buffer.capacity());
    while (!refused && sink.more()) {
      Turns::Turn turn(decompression, io, request.tenant);
      co_await turn.begin();
      refused = sink.take(arrived, from.buffer.capacity());
    }
    if (refused) co_return refused;
    from.buffer.consume(used);
    if (wants_more && from.buffer.size() > kMaxFraming) {
      co_return BodyFault{400,
                          "a line of the body's chunked encoding, or its trailers, have more "
                          "than 8 KiB"};
    }
  }
  parser.get().clear();  // trailers, which nobody reads
  co_return sink.finish();
}

}  // namespace strata::server
