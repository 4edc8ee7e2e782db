// SPDX-License-Identifier: Apache-2.0
#include "engine/file_jobs.h"

#include <sys/stat.h>

#include <filesystem>

namespace strata::engine {

void FileJobs::ask(FileJob job) {
  const MutexLock lock(mutex_);
  waiting_.push_back(std::move(job));
  condition_.notify_all();
}

std::vector<FileJob> FileJobs::take_done() {
  const MutexLock lock(mutex_);
  return std::exchange(done_, {});
}

// The first of a tenant that has none in hand.
std::deque<FileJob>::iterator FileJobs::next() {
  auto at = waiting_.begin();
  while (at != waiting_.end() && working_.contains(at->tenant)) ++at;
  return at;
}

bool FileJobs::run_one() {
  FileJob job;
  {
    const MutexLock lock(mutex_);
    auto found = next();
    for (; !closed_ && found == waiting_.end(); found = next()) condition_.wait(mutex_);
    if (closed_) return false;
    job = std::move(*found);
    waiting_.erase(found);
    working_.insert(job.tenant);
  }
  try {
    run(job);
  } catch (...) {  // whoever asked throws it again
    job.fault = std::current_exception();
  }
  const MutexLock lock(mutex_);
  working_.erase(job.tenant);
  done_.push_back(std::move(job));
  condition_.notify_all();
  return true;
}

void FileJobs::run(FileJob& job) const {
  switch (job.what) {
    case FileJob::What::kReadWeights:
      for (Engine* stage : stages_)
        job.parts.push_back(model::read_adapter(stage->backend(), stage->model(), job.dir));
      return;
    case FileJob::What::kReadState:
      job.states = read_adapter_parts(stages_, job.specs, job.dir, job.optimizer);
      return;
    case FileJob::What::kWriteWeights:
      // What fails here fails when the files are opened.
      (void)::mkdir(job.dir.c_str(), 0700);
      write_adapter_state({.weights = job.weights}, job.dir, stages_[0]->model().dir, metadata_);
      return;
    case FileJob::What::kRemove: {
      std::error_code ignored;
      std::filesystem::remove_all(job.dir, ignored);
      return;
    }
  }
}

void FileJobs::close() {
  const MutexLock lock(mutex_);
  closed_ = true;
  condition_.notify_all();
}

size_t FileJobs::num_waiting() const {
  const MutexLock lock(mutex_);
  return waiting_.size();
}

}  // namespace strata::engine
