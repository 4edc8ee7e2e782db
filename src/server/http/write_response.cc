// SPDX-License-Identifier: Apache-2.0
#include "server/http/write_response.h"

#include <fmt/format.h>

#include <array>
#include <boost/asio/post.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "server/http/file_reader.h"
#include "server/http/refusals.h"
#include "server/http/write_stream.h"

namespace strata::server {

namespace asio = boost::asio;
using boost::system::error_code;

namespace {

constexpr size_t kPiece = Pieces::kMost;
constexpr int64_t kSmall = 4 << 10;  // a connection's own

// Lets the charge hold what the response, of a POST or not, takes until it has been sent. Where
// there is no space for that, the response becomes one that says so. Results are shared by all who
// fetch them, and count where they are kept. The answer of a request that has held space for it
// since it was accepted is sent: what of it is more counts where there is space.
void admit_response(Charge& charge, bool is_post, Response& response) {
  const auto size = std::ssize(response.body);
  if (charge.held(Use::kResult) > 0) {
    [[maybe_unused]] const bool counts = charge.hold(Use::kResult, size);
    return;
  }
  if (size <= kSmall) return;
  const int64_t most = charge.limit(Use::kResponse).most();
  const Refusal row = is_post ? kNoSpaceForResponse : with_other_status(kNoSpaceForResponse);
  std::optional<Response> refused = admit(charge, Use::kResponse, size, row);
  if (!refused) return;
  response = size <= most
                 ? std::move(*refused)
                 : error_response(400, fmt::format("the response has {} bytes, and a tenant's may "
                                                   "have {} (--max-response-bytes): it can never "
                                                   "be sent; ask for less, or for protobuf instead "
                                                   "of JSON",
                                                   size, most));
}

// Likewise for one that is a file; HEAD holds nothing.
void admit_download(const HttpOptions& options, Charge& charge, Response& response) {
  const int64_t running = charge.held_by_tenant(Use::kDownload) / static_cast<int64_t>(kPiece);
  if (running >= options.max_downloads_per_tenant) {
    response = refuse(kTooManyDownloads, {running});
  } else if (auto refused = admit(charge, Use::kDownload, kPiece, kNoSpaceForDownload)) {
    response = std::move(*refused);
  }
}

// A piece that another thread reads while a coroutine waits.
struct Reading {
  std::shared_ptr<FileReader> reader;
  std::string_view piece;
  bool is_done = false;
  asio::steady_timer* ready = nullptr;  // null: nobody waits any more

  void finish(std::string_view what) {
    piece = what;
    is_done = true;
    if (ready != nullptr) ready->cancel();
  }
};

asio::awaitable<std::string_view> read_piece(Outgoing to, const std::string& tenant,
                                             const std::shared_ptr<FileReader>& reader) {
  if (!to.options.read_aside) co_return reader->read_next_piece();
  const auto reading = std::make_shared<Reading>();
  reading->reader = reader;
  asio::steady_timer timer(to.io, asio::steady_timer::time_point::max());
  reading->ready = &timer;
  const std::shared_ptr<void> leaves(nullptr, [reading](void*) { reading->ready = nullptr; });
  to.options.read_aside(tenant, [reading, &io = to.io] {
    const std::string_view piece = reading->reader->read_next_piece();
    asio::post(io, [reading, piece] { reading->finish(piece); });
  });
  while (!reading->is_done) {
    error_code ignored;
    co_await timer.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
  }
  co_return reading->piece;
}

asio::awaitable<bool> send_file(Outgoing to, Pieces& pieces, const FilePart& file) {
  const auto reader = std::make_shared<FileReader>(file, kPiece);
  for (;;) {
    const std::string_view piece = co_await read_piece(to, file.tenant, reader);
    if (piece.empty()) co_return reader->complete();
    const bool is_written = co_await pieces.write(asio::buffer(piece.data(), piece.size()));
    if (!is_written) co_return false;
  }
}

// A response that became a refusal here, for want of space, gets its path's form too.
void put_in_form(const HttpOptions& options, const AnswerTo& of, Response& response) {
  if (options.put_in_form) options.put_in_form(of.path, response);
}

}  // namespace

asio::awaitable<bool> write_response(Outgoing to, const Response& response, bool head_only,
                                     bool keep_alive) {
  const std::string head = response_head(response, keep_alive);
  Pieces pieces(to);
  std::string_view body = head_only || response.file ? std::string_view() : response.bytes();
  const std::array<asio::const_buffer, 2> first = {asio::buffer(head),
                                                   asio::buffer(body.substr(0, kPiece))};
  bool is_written = co_await pieces.write(first);
  while (is_written && body.size() > kPiece) {
    body.remove_prefix(kPiece);
    is_written = co_await pieces.write(asio::buffer(body.substr(0, kPiece)));
  }
  if (!is_written || !response.file || head_only) co_return is_written;
  co_return co_await send_file(to, pieces, *response.file);
}

void close_with_text(Stream::Protocol::socket& socket, const std::string& text) {
  error_code ignored;
  socket.non_blocking(true, ignored);
  socket.send(asio::buffer(text), 0, ignored);
  socket.close(ignored);
}

asio::awaitable<bool> send_response(Outgoing to, const AnswerTo& of, Response& response) {
  const bool head_only = of.method == "HEAD";
  const bool is_post = of.method == "POST";
  const int made = response.status;
  of.charge.release(Use::kBody);  // nobody reads it any more
  if (response.stream) admit_stream(of.charge, is_post, response);
  if (response.stream) {
    const bool keep = of.keep_alive && !of.is_http10;
    const StreamedTo how = {of.owner, of.buffer, !of.is_http10, head_only, keep};
    co_return co_await write_stream(to, how, response) && keep;
  }
  // A signed URL names whom its file counts for.
  Charge of_file = to.options.accounts.open(response.file ? response.file->tenant : "");
  if (response.file && !head_only) {
    admit_download(to.options, of_file, response);
  } else if (!response.file) {
    admit_response(of.charge, is_post, response);
  }
  if (of_file.held(Use::kDownload) > 0 && of.sends_file) of.sends_file(of_file.tenant());
  if (response.status != made) put_in_form(to.options, of, response);
  co_return co_await write_response(to, response, head_only, of.keep_alive) && of.keep_alive;
}

}  // namespace strata::server
