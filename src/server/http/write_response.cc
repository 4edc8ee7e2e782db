#include "server/http/write_response.h"

#include <fmt/format.h>

#include <array>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <chrono>
#include <string>
#include <string_view>
#include <utility>

#include "server/http/file_reader.h"
#include "server/http/response_head.h"

namespace strata::server {

namespace asio = boost::asio;
using boost::system::error_code;

namespace {

constexpr size_t kPiece = 64 << 10;
constexpr size_t kSmall = 4 << 10;  // a connection's own

}  // namespace

// Results are shared by all who fetch them, and count where they are kept.
SharedLimit::Share hold_response(const SharedLimit& limit, const std::string& tenant,
                                 int busy_status, Response& response) {
  const size_t size = response.body.size();
  if (size <= kSmall) return {};
  SharedLimit responses = limit;
  SharedLimit::Share share = responses.take(tenant, static_cast<int64_t>(size));
  if (share) return share;
  const bool is_too_large = std::cmp_greater(size, limit.most());
  const std::string why = fmt::format(
      "the response has {} bytes, and {} of this tenant's are being sent (--max-response-bytes "
      "{}); "
      "{}",
      size, limit.used(tenant), limit.limit(),
      is_too_large ? "it can never be sent: ask for less, or for protobuf instead of JSON"
                   : "read those, then send this again");
  response = is_too_large ? error_response(400, why) : busy_response(busy_status, why);
  return {};
}

asio::awaitable<bool> write_response(Stream& stream, const Response& response, bool head_only,
                                     bool keep_alive, double timeout) {
  const std::string head = response_head(response, keep_alive);
  const std::chrono::duration<double> deadline(timeout);
  stream.expires_after(deadline);
  error_code fault;
  std::string_view body = head_only || response.file ? std::string_view() : response.bytes();
  std::array<asio::const_buffer, 2> parts = {asio::buffer(head),
                                             asio::buffer(body.substr(0, kPiece))};
  co_await asio::async_write(stream, parts, asio::redirect_error(asio::use_awaitable, fault));
  while (!fault && body.size() > kPiece) {
    body.remove_prefix(kPiece);
    stream.expires_after(deadline);
    co_await asio::async_write(stream, asio::buffer(body.substr(0, kPiece)),
                               asio::redirect_error(asio::use_awaitable, fault));
  }
  if (fault) co_return false;
  if (!response.file || head_only) co_return true;
  FileReader reader(*response.file);
  for (;;) {
    const std::string_view piece = reader.next();
    if (piece.empty()) co_return reader.complete();
    stream.expires_after(deadline);
    co_await asio::async_write(stream, asio::buffer(piece.data(), piece.size()),
                               asio::redirect_error(asio::use_awaitable, fault));
    if (fault) co_return false;
  }
}

}  // namespace strata::server
