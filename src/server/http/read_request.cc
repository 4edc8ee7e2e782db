// SPDX-License-Identifier: Apache-2.0
#include "server/http/read_request.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/asio/error.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <chrono>
#include <cstdint>
#include <memory>

#include "base/clock.h"
#include "server/http/refusals.h"
#include "server/http/request_check.h"
#include "server/http/zstd_body.h"

namespace strata::server {

namespace asio = boost::asio;
namespace http = boost::beast::http;

std::list<Turns::Turn*>::iterator Turns::enqueue(Turn* turn, const std::string& tenant) {
  const auto [found, is_new] = line_of_.try_emplace(tenant, lines_.end());
  if (is_new) found->second = lines_.insert(lines_.end(), Line{tenant, {}});
  std::list<Turn*>& waiting = found->second->waiting;
  return waiting.insert(waiting.end(), turn);
}

// Who had its turn lets the other tenants go first.
void Turns::leave_line(const std::string& tenant, std::list<Turn*>::iterator place) {
  const auto found = line_of_.find(tenant);
  const auto line = found->second;
  const bool was_first = *place == first();
  line->waiting.erase(place);
  if (line->waiting.empty()) {
    lines_.erase(line);
    line_of_.erase(found);
  } else if (was_first) {
    lines_.splice(lines_.end(), lines_, line);
  }
  if (was_first && first() != nullptr) first()->timer_.cancel();
}

Turns::Turn::Turn(Turns& turns, asio::io_context& io, const std::string& tenant)
    : turns_(turns),
      tenant_(tenant),
      place_(turns.enqueue(this, tenant)),
      timer_(io, std::chrono::steady_clock::time_point::max()) {}

Turns::Turn::~Turn() {
  if (has_begun_) {
    const std::chrono::steady_clock::time_point now = std::chrono::steady_clock::now();
    turns_.free_at_ = now + (now - begin_);
  }
  turns_.leave_line(tenant_, place_);
}

asio::awaitable<void> Turns::Turn::await_turn() {
  boost::system::error_code ignored;
  const auto wait = [&] {
    return timer_.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
  };
  while (turns_.first() != this) co_await wait();
  timer_.expires_at(turns_.free_at_);
  co_await wait();
  begin_ = std::chrono::steady_clock::now();
  has_begun_ = true;
}

bool needs_turn(const Request& request) {
  constexpr size_t kReadWithoutATurn = 4 << 10;  // bytes of a body
  const Route* route = request.route;
  if (route == nullptr || route->effect == Effect::kUpkeep) return false;
  return route->needs_key || request.body.size() > kReadWithoutATurn;
}

using boost::system::error_code;

error_code HeaderLines::check_next_bytes(std::string_view arrived) {
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

std::string_view last_bytes(const boost::beast::flat_buffer& buffer, size_t count) {
  const asio::const_buffer all = buffer.data();
  return std::string_view(static_cast<const char*>(all.data()), all.size())
      .substr(all.size() - count);
}

}  // namespace

asio::awaitable<error_code> read_header(Incoming from, std::function<bool()> hold) {
  HeaderLines lines;
  for (size_t arrived = from.buffer.size();;) {
    error_code fault = lines.check_next_bytes(last_bytes(from.buffer, arrived));
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

bool expects_continue(const BodyParser& parser) {
  return parser.get().version() >= 11 && !parser.is_done() &&
         boost::beast::iequals(parser.get()[http::field::expect], "100-continue");
}

asio::awaitable<bool> send_continue(Stream& stream) {
  static constexpr std::string_view kContinue = "HTTP/1.1 100 Continue\r\n\r\n";
  error_code fault;
  co_await asio::async_write(stream, asio::buffer(kContinue.data(), kContinue.size()),
                             asio::redirect_error(asio::use_awaitable, fault));
  co_return !fault;
}

bool is_gone(const error_code& fault) { return fault == asio::error::connection_aborted; }

Response header_refusal(const error_code& fault) {
  if (fault == asio::error::no_buffer_space) {
    return refuse(kNoSpaceForHeader);
  }
  if (fault == http::error::header_limit) {
    return error_response(431, fmt::format("the header has more than {} bytes, or more than {} "
                                           "fields",
                                           kMaxHeader, kMaxFields));
  }
  return error_response(400, fmt::format("not HTTP/1.1: {}", fault.message()));
}

Response body_refusal(const BodyFault& fault) {
  Response response = error_response(fault.status, fault.text);
  const bool is_busy =
      fault.status == kNoSpaceForBody.status || fault.status == kNoSpaceForBody.other_status;
  return is_busy ? with_retry_after(std::move(response), kNoSpaceForBody.retry_seconds) : response;
}

namespace {

// What reading a body may hold and not count: it is part of what a connection takes. So a heartbeat
// or a poll is read whatever its tenant and the others hold.
constexpr uint64_t kOwnOfConnection = 8 << 10;

// Takes a body as it arrives; of one request.
class BodySink {
 public:
  // Appends to request.body.
  BodySink(const HttpOptions& options, const BodyLimit& limit, Request& request);

  // Work of a millisecond or two; while more() it is to be called again with what is left of them.
  // The caller's buffer has `buffer_bytes`, which count too.
  [[nodiscard]] std::optional<BodyFault> append_within_limits(std::string_view& bytes,
                                                              size_t buffer_bytes);
  [[nodiscard]] bool more() const { return more_; }
  // After the last byte. From here the body counts until `request` lets it go.
  [[nodiscard]] std::optional<BodyFault> finish();
  [[nodiscard]] std::optional<BodyFault> check_rate(double now) const;

 private:
  [[nodiscard]] std::optional<BodyFault> append_decoded(std::string_view& bytes);
  [[nodiscard]] BodyFault too_large() const;
  [[nodiscard]] std::optional<BodyFault> admit_bytes(uint64_t wanted);

  const HttpOptions& options_;
  BodyLimit limit_;
  Request& request_;
  std::optional<ZstdBody> zstd_;
  double begin_;
  uint64_t read_ = 0;
  bool more_ = false;
};

BodySink::BodySink(const HttpOptions& options, const BodyLimit& limit, Request& request)
    : options_(options), limit_(limit), request_(request), begin_(now_seconds()) {
  if (request.header("content-encoding") == "zstd") zstd_.emplace(limit.bytes);
}

BodyFault BodySink::too_large() const {
  return {413, fmt::format("the body is larger than this endpoint's limit of {} bytes ({})",
                           limit_.bytes, limit_.option)};
}

std::optional<BodyFault> BodySink::check_rate(double now) const {
  const double due = options_.body_timeout + static_cast<double>(read_) / options_.min_body_rate;
  if (now - begin_ <= due) return std::nullopt;
  return BodyFault{408, fmt::format("the body arrives at less than {:g} bytes a second "
                                    "(--min-body-rate)",
                                    options_.min_body_rate)};
}

std::optional<BodyFault> BodySink::append_decoded(std::string_view& bytes) {
  if (!zstd_) {
    append_with_capped_capacity(request_.body, bytes, limit_.bytes);
    return std::nullopt;
  }
  switch (zstd_->feed(bytes, request_.body)) {
    case ZstdBody::Progress::kMore:
      more_ = true;
      break;
    case ZstdBody::Progress::kOk:
      break;
    case ZstdBody::Progress::kCorrupt:
      return BodyFault{400, "the body is not a zstd frame, or the frame is damaged"};
    case ZstdBody::Progress::kTooLarge:
      return too_large();
  }
  return std::nullopt;
}

std::optional<BodyFault> BodySink::append_within_limits(std::string_view& bytes,
                                                        size_t buffer_bytes) {
  if (!more_) read_ += bytes.size();
  more_ = false;
  if (read_ > limit_.bytes) return too_large();
  if (std::optional<BodyFault> fault = append_decoded(bytes)) return fault;
  return admit_bytes(buffer_bytes + request_.body.capacity() + (zstd_ ? zstd_->memory() : 0));
}

std::optional<BodyFault> BodySink::admit_bytes(uint64_t wanted) {
  if (wanted <= kOwnOfConnection && request_.charge->held(Use::kBody) == 0) return std::nullopt;
  const std::optional<std::string> refused =
      admit_use(*request_.charge, Use::kBody, static_cast<int64_t>(wanted), kNoSpaceForBody);
  if (!refused) return std::nullopt;
  return BodyFault{limit_.may_be_put_off ? kNoSpaceForBody.status : kNoSpaceForBody.other_status,
                   *refused};
}

std::optional<BodyFault> BodySink::finish() {
  if (zstd_ && read_ > 0 && !zstd_->complete()) {
    return BodyFault{400, "the zstd body ends before its frame does"};
  }
  if (read_ == 0) {
    request_.charge->release(Use::kBody);
    return std::nullopt;
  }
  return admit_bytes(request_.body.capacity());
}

// How much to read at once: no more than the body still has, where that is known.
size_t read_size(const BodyParser& parser) {
  const auto left = parser.content_length_remaining();
  return left ? std::clamp<uint64_t>(*left, 512, kReadChunk) : kReadChunk / 4;
}

// Whether the last chunk's line and the trailers, which the parser takes in one piece, hold a
// folded line: the parser unfolds such lines, and others do not (RFC 9112 5.2).
bool has_folded_trailer(std::string_view taken) {
  return taken.find("\n ") != std::string_view::npos ||
         taken.find("\n\t") != std::string_view::npos;
}

// A bare LF in a quoted string ends the line for some, and the parser takes it.
void check_chunk_extensions(uint64_t /*size*/, boost::beast::string_view extensions,
                            error_code& fault) {
  const auto is_control = [](char c) {
    return (static_cast<unsigned char>(c) < 0x20 && c != '\t') || c == 0x7f;
  };
  if (std::ranges::any_of(extensions, is_control)) fault = http::error::bad_chunk_extension;
}

asio::awaitable<std::optional<BodyFault>> read_into_buffer(const HttpOptions& options,
                                                           Incoming from) {
  error_code fault;
  from.stream.expires_after(std::chrono::duration<double>(options.body_timeout));
  const size_t count =
      co_await from.stream.async_read_some(from.buffer.prepare(read_size(from.parser)),
                                           asio::redirect_error(asio::use_awaitable, fault));
  if (fault == asio::error::eof) co_return BodyFault{400, "the body ends before its end"};
  if (fault || count == 0) co_return BodyFault{-1, {}};
  from.buffer.commit(count);
  co_return std::nullopt;
}

// Into the parser's body, of what the buffer has: `used` bytes of it, which stay there.
std::optional<BodyFault> parse_next_piece(Incoming from, size_t& used, bool& wants_more) {
  BodyParser& parser = from.parser;
  error_code fault;
  parser.get().body() = {};
  used = parser.put(from.buffer.data(), fault);
  wants_more = fault == http::error::need_more;
  if (fault && !wants_more)
    return BodyFault{400, "the body's chunked encoding is malformed: " + fault.message()};
  const std::string_view taken(static_cast<const char*>(from.buffer.data().data()), used);
  if (parser.is_done() && parser.chunked() && has_folded_trailer(taken))
    return BodyFault{400, "the trailers of the body's chunked encoding are folded"};
  return std::nullopt;
}

// A fault where the parser could not take what has come for longer than any framing is.
std::optional<BodyFault> check_framing_size(const Incoming& from) {
  if (from.buffer.size() <= kMaxFraming) return std::nullopt;
  return BodyFault{400,
                   "a line of the body's chunked encoding, or its trailers, have more than 8 KiB"};
}

}  // namespace

asio::awaitable<std::optional<BodyFault>> read_body(const HttpOptions& options, Incoming from,
                                                    Turns& decompression, asio::io_context& io,
                                                    Request& request) {
  BodySink sink(options, body_limit(options, request.route), request);
  BodyParser& parser = from.parser;
  parser.on_chunk_header(check_chunk_extensions);
  for (bool wants_more = from.buffer.size() == 0; !parser.is_done();
       wants_more = wants_more || from.buffer.size() == 0) {
    if (auto slow = sink.check_rate(now_seconds())) co_return slow;
    if (wants_more) {
      auto lost = co_await read_into_buffer(options, from);
      if (lost) co_return lost;
    }
    size_t used = 0;
    if (auto malformed = parse_next_piece(from, used, wants_more)) co_return malformed;
    std::string_view arrived = parser.get().body();
    auto refused = sink.append_within_limits(arrived, from.buffer.capacity());
    while (!refused && sink.more()) {
      Turns::Turn turn(decompression, io, request.tenant);
      co_await turn.await_turn();
      refused = sink.append_within_limits(arrived, from.buffer.capacity());
    }
    if (refused) co_return refused;
    from.buffer.consume(used);
    if (wants_more) {
      if (auto endless = check_framing_size(from)) co_return endless;
    }
  }
  parser.get().clear();  // trailers, which nobody reads
  co_return sink.finish();
}

}  // namespace strata::server
