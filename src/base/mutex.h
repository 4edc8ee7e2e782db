// SPDX-License-Identifier: Apache-2.0
// Mutex, MutexLock, CondVar: the standard ones, and what clang's -Wthread-safety must know of them.
// A member that is GUARDED_BY(mutex) is touched only under a lock of it, a function that is
// REQUIRES(mutex) called only there; clang refuses the rest, other compilers see plain classes.
//   mutable Mutex mutex_;
//   int count_ GUARDED_BY(mutex_) = 0;
//   ...  const MutexLock lock(mutex_);  ++count_;
#pragma once
#include <chrono>
#include <condition_variable>
#include <mutex>

#include "base/clock.h"

#if defined(__clang__)
#define STRATA_THREAD_ATTRIBUTE(x) __attribute__((x))
#else
#define STRATA_THREAD_ATTRIBUTE(x)
#endif
#define GUARDED_BY(mutex) STRATA_THREAD_ATTRIBUTE(guarded_by(mutex))
#define REQUIRES(mutex) STRATA_THREAD_ATTRIBUTE(requires_capability(mutex))

namespace strata {

class STRATA_THREAD_ATTRIBUTE(capability("mutex")) Mutex {
 public:
  void lock() STRATA_THREAD_ATTRIBUTE(acquire_capability()) { mutex_.lock(); }
  void unlock() STRATA_THREAD_ATTRIBUTE(release_capability()) { mutex_.unlock(); }

 private:
  friend class CondVar;
  std::mutex mutex_;
};

class STRATA_THREAD_ATTRIBUTE(scoped_lockable) MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) STRATA_THREAD_ATTRIBUTE(acquire_capability(mutex))
      : mutex_(mutex) {
    mutex_.lock();
  }
  ~MutexLock() STRATA_THREAD_ATTRIBUTE(release_capability()) { mutex_.unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex& mutex_;
};

// Waits give the mutex up and have it again when they return; the caller looks whether what it
// waits for has come.
class CondVar {
 public:
  void wait(Mutex& mutex) REQUIRES(mutex) {
    std::unique_lock lock(mutex.mutex_, std::adopt_lock);
    condition_.wait(lock);
    lock.release();
  }
  // False when `end`, as now_seconds() counts, came first.
  bool wait_until(Mutex& mutex, double end) REQUIRES(mutex) {
    std::unique_lock lock(mutex.mutex_, std::adopt_lock);
    const std::chrono::duration<double> left(end - now_seconds());
    const bool in_time = condition_.wait_for(lock, left) == std::cv_status::no_timeout;
    lock.release();
    return in_time;
  }
  void notify_one() { condition_.notify_one(); }
  void notify_all() { condition_.notify_all(); }

 private:
  std::condition_variable condition_;
};

}  // namespace strata
