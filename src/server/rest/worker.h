// Worker: one thread for jobs that read or write whole files, so that the I/O thread need not wait.
// Jobs run in order.
#pragma once
#include <deque>
#include <functional>
#include <thread>

#include "base/mutex.h"

namespace strata::server {

class Worker {
 public:
  Worker();
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  // Any thread. A job tells whom it concerns of its own faults; what it throws is logged and ends
  // nothing else. After stop() it runs at once.
  void post(std::function<void()> job);
  // Runs what is queued and joins. The destructor does it too.
  void stop();

 private:
  void loop();
  static void run(const std::function<void()>& job) noexcept;

  Mutex mutex_;
  CondVar wake_;
  std::deque<std::function<void()>> jobs_ GUARDED_BY(mutex_);
  bool stopping_ GUARDED_BY(mutex_) = false;
  std::thread thread_;  // last: it uses the others
};

}  // namespace strata::server
