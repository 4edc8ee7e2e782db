// SPDX-License-Identifier: Apache-2.0
#include "server/tinker/worker.h"

#include <fmt/format.h>

#include <utility>

#include "base/log.h"
#include "base/trace.h"

namespace strata::server {
namespace {

Worker::Piece as_single_piece(Worker::Job job) {
  return [job = std::move(job)] {
    job();
    return false;
  };
}

}  // namespace

void run_logging_faults(std::string_view thread, const std::function<void()>& job) noexcept {
  try {
    job();
  } catch (const std::exception& error) {
    log(LogLevel::kError, fmt::format("{}: a job failed: {}", thread, error.what()));
  } catch (...) {
    log(LogLevel::kError, fmt::format("{}: a job failed", thread));
  }
}

Worker::Worker(Options options)
    : options_(std::move(options)), thread_([this] { run_jobs_until_stopped(); }) {}

Worker::~Worker() { stop(); }

void Worker::stop() {
  std::map<std::string, std::deque<Piece>> dropped;
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
  enqueue_job(tenant, as_single_piece(std::move(job)));
}

void Worker::enqueue_job(const std::string& tenant, Piece job) {
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
  while (!options_.drops_at_stop && run_piece(job)) {
  }
}

bool Worker::try_post(const std::string& tenant, Job job) {
  return try_post_pieces(tenant, as_single_piece(std::move(job)));
}

bool Worker::try_post_pieces(const std::string& tenant, Piece piece) {
  {
    const MutexLock lock(mutex_);
    const auto queue = jobs_.find(tenant);
    if (queue != jobs_.end() && queue->second.size() >= options_.most_waiting) return false;
  }
  // Another thread may have been faster: the limit is one on load, not on a sum.
  enqueue_job(tenant, std::move(piece));
  return true;
}

// Whether it has more.
bool Worker::run_piece(const Piece& job) noexcept {
  const TraceSpan span("job");
  bool has_more = false;
  run_logging_faults("worker", [&] { has_more = job(); });
  return has_more;
}

void Worker::run_jobs_until_stopped() {
  name_thread(options_.name);
  for (;;) {
    Piece job;
    std::string tenant;
    {
      const MutexLock lock(mutex_);
      while (!stopping_ && turns_.empty()) wake_.wait(mutex_);
      if (turns_.empty()) return;
      tenant = std::move(turns_.front());
      turns_.pop_front();
      job = take_next_job(tenant);
    }
    if (run_piece(job)) put_back(tenant, std::move(job));
  }
}

// The tenant's next turn comes behind the others'.
Worker::Piece Worker::take_next_job(const std::string& tenant) {
  const auto queue = jobs_.find(tenant);
  Piece job = std::move(queue->second.front());
  queue->second.pop_front();
  if (queue->second.empty()) {
    jobs_.erase(queue);
  } else {
    turns_.push_back(tenant);
  }
  return job;
}

// What has more pieces, before the tenant's other jobs.
void Worker::put_back(const std::string& tenant, Piece job) {
  const MutexLock lock(mutex_);
  if (stopping_ && options_.drops_at_stop) return;
  const auto [queue, is_first] = jobs_.try_emplace(tenant);
  queue->second.push_front(std::move(job));
  if (is_first) turns_.push_back(tenant);
}

}  // namespace strata::server
