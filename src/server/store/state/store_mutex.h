// SPDX-License-Identifier: Apache-2.0
// StoreMutex: the lock over the state store's one connection. A database elsewhere may hang: the
// thread that serves everybody says so once (hurry_this_thread()), and from then on all its waits
// for the store together, for the lock and for answers, take at most kPatience seconds and
// kPatienceShare of what follows; what a database takes that is well (kUsual a call, and the way
// there and back for each statement) is no wait. Beyond that its calls are a StoreError at once, so
// that whatever stands behind them in its queue waits for less than a second. Other threads wait as
// long as the database's own time limits say. For a database in a file it is a mutex, and for both
// that thread comes before the others that wait.
#pragma once
#include <atomic>
#include <mutex>
#include <thread>

#include "base/mutex.h"
#include "server/store/state/sql.h"

namespace strata::server {

class STRATA_THREAD_ATTRIBUTE(capability("mutex")) StoreMutex {
 public:
  // `sql` outlives it.
  explicit StoreMutex(Sql& sql) : sql_(sql) {}

  void lock() STRATA_THREAD_ATTRIBUTE(acquire_capability());
  void unlock() STRATA_THREAD_ATTRIBUTE(release_capability());
  void hurry_this_thread() { hurried_ = std::this_thread::get_id(); }

  static constexpr double kPatience = 0.4;  // seconds
  static constexpr double kPatienceShare = 0.5;
  static constexpr double kUsual = 0.005;
  static constexpr double kLeast = 0.2;  // with less left nothing is begun: it would be cut off

 private:
  [[nodiscard]] bool is_hurried() const;
  void regain_patience(double now);
  void spend_patience(double now);
  // For no longer than is left; StoreError where that is not enough.
  void lock_with_timeout();

  Sql& sql_;
  std::timed_mutex mutex_;
  std::atomic<int> hurried_waits_ = 0;
  std::atomic<std::thread::id> hurried_;
  // The hurried thread's own.
  double left_ = kPatience;
  double counted_at_ = 0;
  double begun_at_ = 0;
  double usual_at_ = 0;  // Sql::usual_seconds(), then
};

class STRATA_THREAD_ATTRIBUTE(scoped_lockable) StoreLock {
 public:
  explicit StoreLock(StoreMutex& mutex) STRATA_THREAD_ATTRIBUTE(acquire_capability(mutex))
      : mutex_(mutex) {
    mutex_.lock();
  }
  ~StoreLock() STRATA_THREAD_ATTRIBUTE(release_capability()) { mutex_.unlock(); }
  StoreLock(const StoreLock&) = delete;
  StoreLock& operator=(const StoreLock&) = delete;

 private:
  StoreMutex& mutex_;
};

}  // namespace strata::server
