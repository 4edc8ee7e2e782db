// SPDX-License-Identifier: Apache-2.0
#include "engine/file_jobs.h"

#include <sys/stat.h>

#include <algorithm>
#include <filesystem>

#include "base/check.h"

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

FileJob FileJobs::take_waiting(FileJob::What what, const std::string& name) {
  const MutexLock lock(mutex_);
  const auto found = std::ranges::find_if(
      waiting_, [&](const FileJob& job) { return job.what == what && job.name == name; });
  CHECK(found != waiting_.end(), name);
  FileJob job = std::move(*found);
  waiting_.erase(found);
  return job;
}

// The first of a tenant that has none in hand.
std::deque<FileJob>::iterator FileJobs::next() {
  auto at = waiting_.begin();
  while (at != waiting_.end() && working_.contains(at->tenant)) ++at;
  return at;
}

std::optional<FileJob> FileJobs::wait_for_job() {
  const MutexLock lock(mutex_);
  auto found = next();
  for (; !closed_ && found == waiting_.end(); found = next()) condition_.wait(mutex_);
  if (closed_) return std::nullopt;
  FileJob job = std::move(*found);
  waiting_.erase(found);
  working_.insert(job.tenant);
  return job;
}

void FileJobs::put_done(FileJob job) {
  const MutexLock lock(mutex_);
  working_.erase(job.tenant);
  done_.push_back(std::move(job));
  condition_.notify_all();
}

bool FileJobs::run_one() {
  std::optional<FileJob> job = wait_for_job();
  if (!job) return false;
  try {
    run(*job);
  } catch (...) {  // whoever asked throws it again
    job->fault = std::current_exception();
  }
  put_done(std::move(*job));
  return true;
}

void FileJobs::read(FileJob& job) const {
  const bool of_weights = job.what == FileJob::What::kReadWeights;
  if (reads_whole_) {
    Engine& any = *stages_[0];
    if (of_weights) {
      job.whole.weights = model::read_adapter_without_refresh(any.backend(), any.model(), job.dir,
                                                              /*whole=*/true);
    } else {
      job.whole = read_adapter_state(any, job.specs, job.dir, job.optimizer, /*whole=*/true);
    }
  } else if (of_weights) {
    for (Engine* stage : stages_)
      job.parts.push_back(
          model::read_adapter_without_refresh(stage->backend(), stage->model(), job.dir));
  } else {
    job.states = read_adapter_parts(stages_, job.specs, job.dir, job.optimizer);
  }
}

void FileJobs::run(FileJob& job) const {
  switch (job.what) {
    case FileJob::What::kReadWeights:
    case FileJob::What::kReadState:
      return read(job);
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
