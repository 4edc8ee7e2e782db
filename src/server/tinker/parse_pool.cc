// SPDX-License-Identifier: Apache-2.0
#include "server/tinker/parse_pool.h"

#include <utility>

#include "base/trace.h"
#include "server/tinker/worker.h"

namespace strata::server {

ParsePool::ParsePool(int num_threads, std::string name) : name_(std::move(name)) {
  for (int i = 0; i < num_threads; ++i) threads_.emplace_back([this] { run_jobs_until_stopped(); });
}

ParsePool::~ParsePool() { stop(); }

void ParsePool::stop() {
  std::map<std::string, std::deque<std::function<void()>>> dropped;
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
    turns_.clear();
    dropped.swap(jobs_);
  }
  wake_.notify_all();
  for (std::thread& thread : threads_) {
    if (thread.joinable()) thread.join();
  }
}

void ParsePool::post(const std::string& tenant, std::function<void()> job) {
  const MutexLock lock(mutex_);
  if (stopping_) return;
  const auto [queue, is_first] = jobs_.try_emplace(tenant);
  queue->second.push_back(std::move(job));
  if (!is_first) return;
  turns_.push_back(tenant);
  wake_.notify_one();
}

// A tenant's entry stays in jobs_ while one of its jobs runs, so that no other begins.
void ParsePool::run_jobs_until_stopped() {
  name_thread(name_.c_str());
  mutex_.lock();
  for (;;) {
    while (!stopping_ && turns_.empty()) wake_.wait(mutex_);
    if (stopping_) break;
    const std::string tenant = std::move(turns_.front());
    turns_.pop_front();
    std::function<void()> job = take_first_job(tenant);
    mutex_.unlock();
    {
      const TraceSpan span("parse");
      run_logging_faults(name_, job);
    }
    job = nullptr;  // what it held goes here too
    mutex_.lock();
    end_turn(tenant);
  }
  mutex_.unlock();
}

std::function<void()> ParsePool::take_first_job(const std::string& tenant) {
  std::deque<std::function<void()>>& queue = jobs_.at(tenant);
  std::function<void()> job = std::move(queue.front());
  queue.pop_front();
  return job;
}

void ParsePool::end_turn(const std::string& tenant) {
  const auto queue = jobs_.find(tenant);
  if (queue == jobs_.end()) return;  // stopped meanwhile
  if (queue->second.empty()) {
    jobs_.erase(queue);
  } else {
    turns_.push_back(tenant);
    wake_.notify_one();
  }
}

}  // namespace strata::server
