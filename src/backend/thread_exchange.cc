// SPDX-License-Identifier: Apache-2.0
#include "backend/thread_exchange.h"

#include <cstring>
#include <thread>
#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "base/error.h"

namespace strata {
namespace {

constexpr double kLookSeconds = 0.02;  // how late a break may be noticed by who waits
constexpr const char* kOtherFailed = "another rank has failed";

}  // namespace

// To a full ring; the oldest stay in front of the new place.
void Exchange::Channel::add_place() {
  buffers_.insert(buffers_.begin() + static_cast<std::ptrdiff_t>(first_), Buffer());
  first_ = (first_ + 1) % buffers_.size();
}

// And the old one goes first: plans count what messages take (Comm).
void Exchange::Channel::resize_to_the_byte(Buffer& buffer, size_t bytes) {
  if (buffer.capacity() < bytes) {
    Buffer().swap(buffer);
    buffer.reserve(bytes);
  }
  buffer.resize(bytes);
}

void Exchange::Channel::push(const void* data, int64_t bytes) {
  if (count_ == buffers_.size()) add_place();
  Buffer& buffer = buffers_[(first_ + count_) % buffers_.size()];
  resize_to_the_byte(buffer, static_cast<size_t>(bytes));
  if (bytes > 0) std::memcpy(buffer.data(), data, buffer.size());
  ++count_;
}

void Exchange::Channel::pop(void* data, int64_t bytes) {
  const Buffer& buffer = buffers_[first_];
  CHECK(std::ssize(buffer) == bytes, buffer.size(), bytes);
  if (bytes > 0) std::memcpy(data, buffer.data(), buffer.size());
  first_ = (first_ + 1) % buffers_.size();
  --count_;
}

void Exchange::send(int from, int to, int64_t tag, const void* data, int64_t bytes) {
  const MutexLock lock(mutex_);
  channels_[{from, to, tag}].push(data, bytes);
  arrived_.notify_all();
}

Exchange::Channel* Exchange::find_channel_with_message(int from, int to, int64_t tag) {
  if (from != Comm::kAnyRank) {
    Channel& channel = channels_[{from, to, tag}];
    return channel.empty() ? nullptr : &channel;
  }
  for (auto& [key, channel] : channels_) {
    if (std::get<1>(key) == to && std::get<2>(key) == tag && !channel.empty()) return &channel;
  }
  return nullptr;
}

bool Exchange::try_wait(const Interruption* breaks) {
  if (breaks == nullptr) {
    arrived_.wait(mutex_);
  } else if (breaks->is_due()) {
    return false;
  } else {
    arrived_.wait_until(mutex_, now_seconds() + kLookSeconds);
  }
  return true;
}

// False: a break is due.
bool Exchange::try_receive(int from, int to, int64_t tag, void* data, int64_t bytes,
                           const Interruption* breaks) {
  const MutexLock lock(mutex_);
  Channel* channel = nullptr;
  while ((channel = find_channel_with_message(from, to, tag)) == nullptr) {
    if (failure_ || work_failure_) throw Error(ErrorCode::kIo, kOtherFailed);
    if (!try_wait(breaks)) return false;
  }
  channel->pop(data, bytes);
  return true;
}

void Exchange::receive(int from, int to, int64_t tag, void* data, int64_t bytes,
                       const Interruption* breaks) {
  while (!try_receive(from, to, tag, data, bytes, breaks)) breaks->run();
}

void Exchange::wake() {
  const MutexLock lock(mutex_);
  arrived_.notify_all();
}

bool Exchange::announce_failure(std::exception_ptr failure) {
  const MutexLock lock(mutex_);
  if (failure_) return false;
  failure_ = std::move(failure);
  arrived_.notify_all();
  return true;
}

std::exception_ptr Exchange::failure() {
  const MutexLock lock(mutex_);
  return failure_;
}

std::exception_ptr Exchange::recover_from_failure() {
  const MutexLock lock(mutex_);
  if (failure_) clear_channels();
  return std::exchange(failure_, nullptr);
}

uint64_t Exchange::begin_settling(int num_ranks, const std::optional<RankFailure>& own) {
  const MutexLock lock(mutex_);
  const uint64_t before = num_settled_;
  if (own && !work_failure_) work_failure_ = own;
  arrived_.notify_all();  // who waits for a message of one that has failed
  if (++num_settling_ == num_ranks) {
    num_settling_ = 0;
    ++num_settled_;
    if (work_failure_) clear_channels();
    settled_failure_ = std::exchange(work_failure_, std::nullopt);
  }
  return before;
}

// False: a break is due.
bool Exchange::try_settle(uint64_t before, const Interruption* breaks) {
  const MutexLock lock(mutex_);
  while (num_settled_ == before) {
    if (failure_) throw Error(ErrorCode::kIo, kOtherFailed);
    if (!try_wait(breaks)) return false;
  }
  return true;
}

std::optional<RankFailure> Exchange::settle(int num_ranks, const std::optional<RankFailure>& own,
                                            const Interruption* breaks) {
  const uint64_t before = begin_settling(num_ranks, own);
  while (!try_settle(before, breaks)) breaks->run();
  const MutexLock lock(mutex_);
  return settled_failure_;
}

void Exchange::ask_for_break() {
  ++num_breaks_asked_;
  wake();
}

void Exchange::clear_channels() {
  for (auto& [key, channel] : channels_) channel.clear();
}

void run_threads(Exchange& exchange, int count, FunctionRef<void(int thread)> body,
                 FunctionRef<void(const std::exception_ptr& failure)> tell) {
  const auto fail = [&] {
    // Who was stopped by another's fault may be here before that is told, and says nothing.
    const std::exception_ptr failure = std::current_exception();
    if (exchange.announce_failure(failure)) tell(failure);
  };
  const auto run_body = [&](int thread) {
    try {
      body(thread);
    } catch (...) {
      fail();
    }
  };
  {
    std::vector<std::jthread> threads;
    try {
      for (int thread = 0; thread < count; ++thread) threads.emplace_back(run_body, thread);
    } catch (...) {
      fail();
    }
  }
  if (const std::exception_ptr failure = exchange.failure()) std::rethrow_exception(failure);
}

}  // namespace strata
