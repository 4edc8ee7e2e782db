// SPDX-License-Identifier: Apache-2.0
#include "server/http/write_stream.h"

#include <fmt/format.h>

#include <array>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <string_view>

#include "server/http/body_stream.h"
#include "server/http/refusals.h"
#include "server/http/stream.h"

namespace strata::server {

namespace asio = boost::asio;

namespace {

asio::const_buffer bytes_of(std::string_view text) { return {text.data(), text.size()}; }

// Writes the bytes as they are, or as one chunk.
asio::awaitable<bool> write_piece(Pieces& pieces, std::string_view bytes, bool is_chunked) {
  if (!is_chunked) co_return co_await pieces.write(bytes_of(bytes));
  const std::string size = fmt::format("{:x}\r\n", bytes.size());
  const std::array<asio::const_buffer, 3> chunk = {bytes_of(size), bytes_of(bytes),
                                                   bytes_of("\r\n")};
  co_return co_await pieces.write(chunk);
}

asio::awaitable<bool> write_body(Outgoing to, Pieces& pieces, BodyStream& body, bool is_chunked) {
  asio::steady_timer changed(to.io, asio::steady_timer::time_point::max());
  body.attach([&changed] { changed.cancel(); });
  const std::shared_ptr<void> leaves(nullptr, [&body](void*) { body.attach(nullptr); });
  for (;;) {
    if (body.closed()) co_return false;
    const std::string bytes = body.pop_bytes(Pieces::kMost);
    if (!bytes.empty()) {
      if (!co_await write_piece(pieces, bytes, is_chunked)) co_return false;
      body.release_sent_bytes();
    } else if (body.finished()) {
      if (!is_chunked) co_return true;
      co_return co_await pieces.write(bytes_of("0\r\n\r\n"));
    } else {
      boost::system::error_code ignored;
      co_await changed.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
    }
  }
}

}  // namespace

void admit_stream(Charge& charge, bool is_post, Response& response) {
  BodyStream& body = *response.stream;
  const Refusal row = is_post ? kNoSpaceForStream : with_other_status(kNoSpaceForStream);
  std::optional<Response> refused = admit(charge, Use::kResponse, body.bytes_to_hold(), row);
  if (!refused) return body.count_at(charge);
  body.close();
  response = std::move(*refused);
}

asio::awaitable<bool> write_stream(Outgoing to, const StreamedTo& how, const Response& response) {
  BodyStream& body = *response.stream;
  // Whatever becomes of the connection, the handler learns of it.
  const std::shared_ptr<void> ends(nullptr, [&body](void*) { body.close(); });
  PeerWatch watch(to.io, how.owner, to.stream, how.buffer, [&body] { body.close(); });
  Pieces pieces(to);
  const std::string head = response_head(response, how.keep_alive, how.is_chunked);
  bool is_written = co_await pieces.write(bytes_of(head));
  if (is_written && !how.head_only)
    is_written = co_await write_body(to, pieces, body, how.is_chunked);
  co_await watch.stop();
  co_return is_written;
}

}  // namespace strata::server
