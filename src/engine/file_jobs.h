// SPDX-License-Identifier: Apache-2.0
// FileJobs: files of adapters that the engine wants read or written. It asks, goes on, and takes
// what is done; threads that may wait for a disk do the work, so that the engine thread opens no
// file. Jobs of one tenant are done one after the other: where there are two threads, a slow file
// of one holds up nobody else's. Any thread.
//   files.ask({.name = id, .dir = dir});  ...  for (FileJob& job : files.take_done()) ...
#pragma once
#include <cstdint>
#include <deque>
#include <exception>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "api/ids.h"
#include "base/mutex.h"
#include "engine/adapter_state.h"
#include "engine/stages.h"

namespace strata::engine {

struct FileJob {
  enum class What : uint8_t {
    kReadWeights,   // of `dir` into `parts`, whose panels are not refreshed
    kReadState,     // of `dir` into `states`
    kWriteWeights,  // `weights` to `dir`
    kRemove,        // `dir`, where it is
  };
  What what = What::kReadWeights;
  api::TenantId tenant = {};
  std::string name = {};  // of the snapshot, or of the request, that it is for
  std::string dir = {};
  std::vector<model::LoraModuleSpec> specs = {};  // that a state must have
  bool optimizer = false;                         // moments are read too
  std::shared_ptr<const model::LoraAdapter> weights = nullptr;
  StagedAdapter parts = {};
  std::vector<AdapterCopy> states = {};  // of each stage
  AdapterCopy whole = {};                // in place of both, where other processes have stages
  std::exception_ptr fault = nullptr;    // of one that is done
};

class FileJobs {
 public:
  // `stages` are borrowed; `metadata` of every file that is written.
  FileJobs(Stages& stages, std::map<std::string, std::string> metadata)
      : reads_whole_(stages.has_other_processes()), metadata_(std::move(metadata)) {
    for (size_t i = 0; i < stages.size(); ++i) stages_.push_back(&stages.engine(i));
  }

  void ask(FileJob job);
  // In the order in which they were done.
  std::vector<FileJob> take_done();
  // One that was asked for and that another process has done: the first with this name.
  FileJob take_waiting(FileJob::What what, const std::string& name);

  // Waits for a job that may be done, and does it. False once it is closed.
  bool run_one();
  // Nothing is begun from now on.
  void close();
  [[nodiscard]] size_t num_waiting() const;

 private:
  void run(FileJob& job) const;
  void read(FileJob& job) const;
  // The next one that may be done, which is in hand then; none once it is closed.
  std::optional<FileJob> wait_for_job();
  void put_done(FileJob job);
  [[nodiscard]] std::deque<FileJob>::iterator next() REQUIRES(mutex_);

  std::vector<Engine*> stages_;
  const bool reads_whole_;  // whatever part of the model this process has
  const std::map<std::string, std::string> metadata_;
  mutable Mutex mutex_;
  CondVar condition_;
  std::deque<FileJob> waiting_ GUARDED_BY(mutex_);
  std::set<api::TenantId> working_ GUARDED_BY(mutex_);  // whose jobs threads have in hand
  std::vector<FileJob> done_ GUARDED_BY(mutex_);
  bool closed_ GUARDED_BY(mutex_) = false;
};

}  // namespace strata::engine
