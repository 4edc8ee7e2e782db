// SPDX-License-Identifier: Apache-2.0
// SnapshotCache: fixed sampler weights in memory, by id. Each is an adapter of its own that nothing
// trains: further training of the model it came from, or its unloading, never reaches it. When they
// take more than the limit, those unused for longest go; who asks again gets them from their
// folder, with the same bits. An ephemeral one is written to its folder before it goes; until that
// is done, and while it cannot be, it stays. Rows that use one keep it alive. Files are read and
// written by others (engine/file_jobs.h). Engine thread only.
#pragma once
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "api/ids.h"
#include "engine/file_jobs.h"
#include "engine/stages.h"

namespace strata::engine {

class SnapshotCache {
 public:
  // Borrows both.
  SnapshotCache(Stages& stages, FileJobs& files, int64_t max_bytes)
      : stages_(stages), files_(files), max_bytes_(max_bytes) {}

  // A copy that nothing trains. `dir` is where it is or will be written, for an ephemeral one by
  // this cache.
  void put(const api::SnapshotId& id, StagedAdapter adapter, const std::string& dir,
           bool ephemeral);
  // From memory; none when it is not there.
  [[nodiscard]] StagedAdapter lookup_adapter(const api::SnapshotId& id);
  // Has it read from `dir`, once for all who ask meanwhile; Error when there is no folder.
  void request_read(const api::SnapshotId& id, const std::string& dir, const api::TenantId& tenant);
  // What came of a read: the weights, or its Error.
  StagedAdapter finish_read(FileJob job);
  void finish_write(FileJob job);
  // Before any work: reads it on this thread.
  StagedAdapter load(const api::SnapshotId& id, const std::string& dir);
  // Forgets it. Its folder is the caller's.
  void release(const api::SnapshotId& id);

  [[nodiscard]] size_t size() const { return entries_.size(); }
  [[nodiscard]] int64_t num_bytes() const { return num_bytes_; }
  // More is held than the limit, until what is being written has gone.
  [[nodiscard]] bool awaits_writes() const;

 private:
  struct Entry {
    StagedAdapter adapter;
    std::string dir;
    bool unwritten = false;  // ephemeral, and only here
    // By a job, now: what it writes.
    std::shared_ptr<const model::LoraAdapter> written = nullptr;
    bool could_not = false;  // be written, since something was last added
    int64_t bytes = 0;
    uint64_t last_use = 0;
  };
  void put_entry(const api::SnapshotId& id, Entry entry);
  void evict_to_limit();
  void request_write(const api::SnapshotId& id, Entry& entry);
  [[nodiscard]] std::map<api::SnapshotId, Entry>::iterator find_oldest_evictable();

  Stages& stages_;
  FileJobs& files_;
  int64_t max_bytes_;
  int64_t num_bytes_ = 0;
  uint64_t clock_ = 0;
  std::map<api::SnapshotId, Entry> entries_;
  std::map<api::SnapshotId, bool> reading_;  // whether it was released meanwhile
};

}  // namespace strata::engine
