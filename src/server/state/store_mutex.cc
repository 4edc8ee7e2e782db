// SPDX-License-Identifier: Apache-2.0
#include "server/state/store_mutex.h"

#include <algorithm>
#include <chrono>
#include <optional>

#include "base/clock.h"
#include "base/error.h"

namespace strata::server {

bool StoreMutex::is_hurried() const {
  return sql_.may_hang() && hurried_.load() == std::this_thread::get_id();
}

void StoreMutex::lock() {
  struct Waits {
    std::atomic<int>& count;
    ~Waits() { --count; }
  };
  std::optional<Waits> waits;
  if (hurried_.load() == std::this_thread::get_id()) {
    ++hurried_waits_;
    waits.emplace(hurried_waits_);
  } else {
    // A mutex that was given back goes to who asks next, not to who waits.
    while (hurried_waits_ > 0) std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
  if (!is_hurried()) {
    mutex_.lock();
    sql_.set_deadline(Sql::kNoDeadline);
    return;
  }
  if (sql_.is_away()) throw StoreError("state store: its database is away");
  const double now = now_seconds();
  left_ = std::min(kPatience, left_ + kPatienceShare * (now - counted_at_));
  counted_at_ = begun_at_ = now;
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
  if (is_hurried()) {
    const double now = now_seconds();
    const double usual = kUsual + sql_.usual_seconds() - usual_at_;
    // Not below 0: a standstill of this process is no fault of the database.
    left_ = std::max(0.0, left_ - std::max(0.0, now - begun_at_ - usual));
    counted_at_ = now;
  }
  mutex_.unlock();
}

}  // namespace strata::server
