// SPDX-License-Identifier: Apache-2.0
// SnapshotCache: fixed sampler weights in memory, by id. Each is an adapter of its own that nothing
// trains: further training of the model it came from, or its unloading, never reaches it. When they
// take more than the limit, those unused for longest go; who asks again gets them from their
// folder, with the same bits. An ephemeral one is written to its folder when it goes; while that
// cannot be, it stays. Rows that use one keep it alive. Engine thread only.
#pragma once
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "api/ids.h"
#include "engine/engine.h"

namespace strata::engine {

class SnapshotCache {
 public:
  // `room` (borrowed): where weights that are read again are made ready.
  // `metadata`: of the files of what it writes.
  SnapshotCache(Engine& engine, PassRoom& room, int64_t max_bytes,
                std::map<std::string, std::string> metadata)
      : engine_(engine), room_(room), max_bytes_(max_bytes), metadata_(std::move(metadata)) {}

  // A copy that nothing trains. `dir` is where it is or will be written, for an ephemeral one by
  // this cache.
  void put(const api::SnapshotId& id, std::shared_ptr<model::LoraAdapter> adapter,
           const std::string& dir, bool ephemeral);
  // From memory, or from `dir`; Error when it is in neither.
  std::shared_ptr<model::LoraAdapter> get(const api::SnapshotId& id, const std::string& dir);
  // Forgets it. Its folder is the caller's.
  void release(const api::SnapshotId& id);

  [[nodiscard]] size_t size() const { return entries_.size(); }
  [[nodiscard]] int64_t num_bytes() const { return num_bytes_; }

 private:
  struct Entry {
    std::shared_ptr<model::LoraAdapter> adapter;
    std::string dir;
    bool unwritten = false;  // ephemeral, and only here
    int64_t bytes = 0;
    uint64_t last_use = 0;
  };
  void insert(const api::SnapshotId& id, Entry entry);
  void make_room();
  [[nodiscard]] bool write(const api::SnapshotId& id, Entry& entry);

  Engine& engine_;
  PassRoom& room_;
  int64_t max_bytes_;
  const std::map<std::string, std::string> metadata_;
  int64_t num_bytes_ = 0;
  uint64_t clock_ = 0;
  std::map<api::SnapshotId, Entry> entries_;
};

}  // namespace strata::engine
