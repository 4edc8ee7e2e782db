// SPDX-License-Identifier: Apache-2.0
#include "server/http/body/body_sink.h"

#include <fmt/format.h>

#include "base/clock.h"

namespace strata::server {
namespace {

// What reading a body may hold and not count: it is part of what a connection takes. So a heartbeat
// or a poll is read whatever its tenant and the others hold.
constexpr uint64_t kOwnOfConnection = 8 << 10;

}  // namespace

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

std::optional<BodyFault> BodySink::take(std::string_view& bytes, size_t buffer_bytes) {
  if (!more_) read_ += bytes.size();
  more_ = false;
  if (read_ > limit_.bytes) return too_large();
  if (!zstd_) {
    append_bounded(request_.body, bytes, limit_.bytes);
  } else {
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
  }
  return count(buffer_bytes + request_.body.capacity() + (zstd_ ? zstd_->memory() : 0));
}

std::optional<BodyFault> BodySink::count(uint64_t held) {
  if (held <= kOwnOfConnection && !*share_) return std::nullopt;
  const auto bytes = static_cast<int64_t>(held);
  SharedLimit bodies = options_.bodies;
  if (!*share_) {
    *share_ = bodies.take(request_.tenant, bytes);
    if (*share_) return std::nullopt;
  } else if (share_->resize(bytes)) {
    return std::nullopt;
  }
  return BodyFault{
      limit_.may_be_put_off ? 429 : 503,
      fmt::format("{} bytes of bodies of this tenant are being read, and there is no "
                  "space for {} more (--max-body-bytes {}); send this again when "
                  "those have been answered",
                  bodies.used(request_.tenant) - share_->amount(), bytes, bodies.limit())};
}

std::optional<BodyFault> BodySink::finish() {
  if (zstd_ && read_ > 0 && !zstd_->complete()) {
    return BodyFault{400, "the zstd body ends before its frame does"};
  }
  if (read_ == 0) return std::nullopt;
  std::optional<BodyFault> fault = count(request_.body.capacity());
  if (!fault && *share_) request_.body_share = std::move(share_);
  return fault;
}

}  // namespace strata::server
