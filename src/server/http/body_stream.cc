// SPDX-License-Identifier: Apache-2.0
#include "server/http/body_stream.h"

#include <algorithm>

namespace strata::server {
namespace {

constexpr size_t kLeastHeld = 4 << 10;  // as long as a stream lives

}  // namespace

int64_t BodyStream::bytes_to_hold() const {
  return static_cast<int64_t>(std::max(kLeastHeld, waiting_.size() + expected_));
}

// Before count_at() the bound alone counts.
bool BodyStream::try_grow(size_t bytes) {
  const size_t wanted = waiting_.size() + taken_ + expected_ + bytes;
  if (wanted > kMostWaiting) return false;
  if (charge_ == nullptr || std::cmp_less_equal(wanted, charge_->held(Use::kResponse))) return true;
  return charge_->hold(Use::kResponse, static_cast<int64_t>(wanted));
}

void BodyStream::abandon() {
  closed_ = true;
  std::string().swap(waiting_);
  wake();
}

bool BodyStream::offer_bytes(std::string_view bytes, size_t expected) {
  expected_ -= expected;
  if (ends()) return false;
  if (!try_grow(bytes.size())) {
    abandon();
    return false;
  }
  waiting_ += bytes;
  wake();
  return true;
}

bool BodyStream::reserve_expected(size_t bytes) {
  if (ends()) return false;
  if (!try_grow(bytes)) {
    abandon();
    return false;
  }
  expected_ += bytes;
  return true;
}

void BodyStream::finish() {
  finished_ = true;
  wake();
}

std::string BodyStream::pop_bytes(size_t most) {
  std::string bytes;
  if (waiting_.size() <= most) {
    bytes = std::exchange(waiting_, {});
  } else {
    bytes = waiting_.substr(0, most);
    waiting_.erase(0, most);
  }
  taken_ = bytes.size();
  return bytes;
}

void BodyStream::release_sent_bytes() {
  taken_ = 0;
  // Not at each piece: what a stream once had waiting goes when it is twice what it has.
  if (charge_ != nullptr && charge_->held(Use::kResponse) / 2 >= bytes_to_hold()) {
    [[maybe_unused]] const bool shrinks = charge_->hold(Use::kResponse, bytes_to_hold());
  }
}

void BodyStream::close() {
  const bool was_whole = finished_ && waiting_.empty() && !closed_;
  closed_ = true;
  std::string().swap(waiting_);
  if (charge_ != nullptr) charge_->release(Use::kResponse);
  charge_ = nullptr;
  const auto then = std::exchange(on_close_, nullptr);
  if (then && !was_whole) then();
  wake();
}

}  // namespace strata::server
