#include "server/rest/worker.h"

#include <fmt/format.h>

#include <utility>

#include "base/log.h"
#include "base/trace.h"

namespace strata::server {

Worker::Worker() : thread_([this] { loop(); }) {}

Worker::~Worker() { stop(); }

void Worker::stop() {
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_one();
  if (thread_.joinable()) thread_.join();
}

void Worker::post(std::function<void()> job) {
  {
    const MutexLock lock(mutex_);
    if (!stopping_) {
      jobs_.push_back(std::move(job));
      wake_.notify_one();
      return;
    }
  }
  run(job);
}

void Worker::run(const std::function<void()>& job) noexcept {
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
  name_thread("disk");
  for (;;) {
    std::function<void()> job;
    {
      const MutexLock lock(mutex_);
      while (!stopping_ && jobs_.empty()) wake_.wait(mutex_);
      if (jobs_.empty()) return;
      job = std::move(jobs_.front());
      jobs_.pop_front();
    }
    run(job);
  }
}

}  // namespace strata::server
