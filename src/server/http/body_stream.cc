// SPDX-License-Identifier: Apache-2.0
#include "server/http/body_stream.h"

#include <algorithm>

namespace strata::server {
namespace {

constexpr size_t kLeastShare = 4 << 10;  // taken as long as a stream lives

}  // namespace

bool BodyStream::try_acquire_share(const SharedLimit& responses, const std::string& tenant) {
  SharedLimit limit = responses;
  const size_t wanted = waiting_.size() + expected_;
  share_ = limit.take(tenant, static_cast<int64_t>(std::max(kLeastShare, wanted)));
  return static_cast<bool>(share_);
}

// Before try_acquire_share() the bound alone counts.
bool BodyStream::try_grow_share(size_t bytes) {
  const size_t wanted = waiting_.size() + taken_ + expected_ + bytes;
  if (wanted > kMostWaiting) return false;
  if (!share_ || std::cmp_less_equal(wanted, share_.amount())) return true;
  return share_.resize(static_cast<int64_t>(wanted));
}

void BodyStream::abandon() {
  closed_ = true;
  std::string().swap(waiting_);
  wake();
}

bool BodyStream::push_or_close(std::string_view bytes, size_t expected) {
  expected_ -= expected;
  if (ends()) return false;
  if (!try_grow_share(bytes.size())) {
    abandon();
    return false;
  }
  waiting_ += bytes;
  wake();
  return true;
}

bool BodyStream::reserve_expected_or_close(size_t bytes) {
  if (ends()) return false;
  if (!try_grow_share(bytes)) {
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
  const auto needed = static_cast<int64_t>(std::max(kLeastShare, waiting_.size() + expected_));
  if (share_.amount() / 2 >= needed) {
    [[maybe_unused]] const bool shrinks = share_.resize(needed);
  }
}

void BodyStream::close() {
  const bool was_whole = finished_ && waiting_.empty() && !closed_;
  closed_ = true;
  std::string().swap(waiting_);
  share_ = SharedLimit::Share();
  const auto then = std::exchange(on_close_, nullptr);
  if (then && !was_whole) then();
  wake();
}

}  // namespace strata::server
