// SPDX-License-Identifier: Apache-2.0
// ParsePool: threads for what would hold the I/O thread too long: large bodies and large results.
// A tenant's jobs run in order, one at a time, and tenants take turns, so that many large bodies of
// one delay its own requests alone. What the jobs hold is bounded by who posts them.
#pragma once
#include <deque>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "base/mutex.h"

namespace strata::server {

class ParsePool {
 public:
  // `name` is what its threads are called.
  explicit ParsePool(int num_threads, std::string name = "parser");
  ~ParsePool();  // stops
  ParsePool(const ParsePool&) = delete;
  ParsePool& operator=(const ParsePool&) = delete;

  // Any thread. A job tells whom it concerns of its own faults; what it throws is logged and ends
  // nothing else. After stop() it is dropped.
  void post(const std::string& tenant, std::function<void()> job);
  // Drops what has not begun, and joins.
  void stop();

 private:
  void run_jobs_until_stopped();
  [[nodiscard]] std::function<void()> take_first_job(const std::string& tenant) REQUIRES(mutex_);
  void end_turn(const std::string& tenant) REQUIRES(mutex_);

  const std::string name_;
  Mutex mutex_;
  CondVar wake_;
  std::map<std::string, std::deque<std::function<void()>>> jobs_
      GUARDED_BY(mutex_);                             // by tenant; none is empty
  std::deque<std::string> turns_ GUARDED_BY(mutex_);  // tenants with jobs, none of which is running
  bool stopping_ GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace strata::server
