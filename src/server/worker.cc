// SPDX-License-Identifier: Apache-2.0
#include "server/worker.h"

#include <fmt/format.h>

#include <utility>

#include "base/log.h"
#include "base/trace.h"

namespace strata::server {

Worker::Worker(Options options) : options_(std::move(options)), thread_([this] { loop(); }) {}

Worker::~Worker() { stop(); }

void Worker::stop() {
  std::map<std::string, std::deque<Job>> dropped;
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
    if (options_.drops_at_stop) {
      dropped.swap(jobs_);
      turns_.clear();
    }
  }
  dropped.clear();  // before what runs has ended: who waits for one of them is told
  wake_.notify_one();
  if (thread_.joinable()) thread_.join();
}

void Worker::post(const std::string& tenant, Job job) {
  {
    const MutexLock lock(mutex_);
    if (!stopping_) {
      const auto [queue, is_first] = jobs_.try_emplace(tenant);
      queue->second.push_back(std::move(job));
      if (is_first) turns_.push_back(tenant);
      wake_.notify_one();
      return;
    }
  }
  if (!options_.drops_at_stop) run(job);
}

bool Worker::try_post(const std::string& tenant, Job job) {
  {
    const MutexLock lock(mutex_);
    const auto queue = jobs_.find(tenant);
    if (queue != jobs_.end() && queue->second.size() >= options_.most_waiting) return false;
  }
  // Another thread may have been faster: the limit is one on load, not on a sum.
  post(tenant, std::move(job));
  return true;
}

void Worker::run(const Job& job) noexcept {
  const TraceSpan span("job");
  try {
    job();
  } catch (const std::exception& error) {
    log(LogLevel::kError, fmt::format("worker: a job failed: {}", error.what()));
  } catch (...) {
    log(LogLevel::kError, "worker: a job failed");
  }
}

void Worker::loop() {
  name_thread(options_.name);
  for (;;) {
    Job job;
    {
      const MutexLock lock(mutex_);
      while (!stopping_ && turns_.empty()) wake_.wait(mutex_);
      if (turns_.empty()) return;
      const auto queue = jobs_.find(turns_.front());
      job = std::move(queue->second.front());
      queue->second.pop_front();
      if (queue->second.empty()) {
        jobs_.erase(queue);
      } else {
        turns_.push_back(std::move(turns_.front()));
      }
      turns_.pop_front();
    }
    run(job);
  }
}

}  // namespace strata::server
