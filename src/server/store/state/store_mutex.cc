// SPDX-License-Identifier: Apache-2.0
#include "server/store/state/store_mutex.h"

#include <algorithm>
#include <chrono>

#include "base/clock.h"
#include "base/error.h"

namespace strata::server {
namespace {

// One of those that a count has, while it lives.
struct Waits {
  explicit Waits(std::atomic<int>* of) : count(of) {
    if (count != nullptr) ++*count;
  }
  ~Waits() {
    if (count != nullptr) --*count;
  }
  Waits(const Waits&) = delete;
  Waits& operator=(const Waits&) = delete;

  std::atomic<int>* count;  // null: none
};

}  // namespace

bool StoreMutex::is_hurried() const {
  return sql_.may_hang() && hurried_.load() == std::this_thread::get_id();
}

void StoreMutex::lock() {
  const bool comes_first = hurried_.load() == std::this_thread::get_id();
  // A mutex that was given back goes to who asks next, not to who waits.
  while (!comes_first && hurried_waits_ > 0)
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  const Waits waits(comes_first ? &hurried_waits_ : nullptr);
  if (is_hurried()) return lock_with_timeout();
  mutex_.lock();
  sql_.set_deadline(Sql::kNoDeadline);
}

void StoreMutex::regain_patience(double now) {
  left_ = std::min(kPatience, left_ + kPatienceShare * (now - counted_at_));
  counted_at_ = now;
}

void StoreMutex::spend_patience(double now) {
  const double usual = kUsual + sql_.usual_seconds() - usual_at_;
  // Not below 0: a standstill of this process is no fault of the database.
  left_ = std::max(0.0, left_ - std::max(0.0, now - begun_at_ - usual));
  counted_at_ = now;
}

void StoreMutex::lock_with_timeout() {
  if (sql_.is_away()) throw StoreError("state store: its database is away");
  const double now = now_seconds();
  regain_patience(now);
  begun_at_ = now;
  if (left_ < kLeast) throw StoreError("state store: its database is slow");
  if (!mutex_.try_lock_for(std::chrono::duration<double>(left_))) {
    left_ = 0;
    counted_at_ = now_seconds();
    throw StoreError("state store: its database hangs, others wait for it");
  }
  usual_at_ = sql_.usual_seconds();
  sql_.set_deadline(now + left_);
}

void StoreMutex::unlock() {
  if (is_hurried()) spend_patience(now_seconds());
  mutex_.unlock();
}

}  // namespace strata::server
