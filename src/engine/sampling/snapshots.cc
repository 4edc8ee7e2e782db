// SPDX-License-Identifier: Apache-2.0
#include "engine/sampling/snapshots.h"

#include <fmt/format.h>

#include <set>

#include "base/error.h"
#include "base/log.h"
#include "engine/adapter_state.h"

namespace strata::engine {

void SnapshotCache::put(const api::SnapshotId& id, std::shared_ptr<model::LoraAdapter> adapter,
                        const std::string& dir, bool ephemeral) {
  insert(id, {.adapter = std::move(adapter), .dir = dir, .unwritten = ephemeral});
}

void SnapshotCache::insert(const api::SnapshotId& id, Entry entry) {
  release(id);
  std::vector<model::LoraModuleSpec> specs;
  for (const model::LoraModule& module : entry.adapter->modules()) specs.push_back(module.spec);
  entry.bytes = adapter_bytes(engine_, specs, false);
  entry.last_use = ++clock_;
  num_bytes_ += entry.bytes;
  entries_[id] = std::move(entry);
  make_room();
}

void SnapshotCache::make_room() {
  std::set<api::SnapshotId> unwritable;
  while (num_bytes_ > max_bytes_) {
    auto oldest = entries_.end();
    for (auto at = entries_.begin(); at != entries_.end(); ++at) {
      // The newest stays, and those that rows use would not give their memory back.
      if (at->second.last_use == clock_ || at->second.adapter.use_count() > 1) continue;
      if (unwritable.contains(at->first)) continue;
      if (oldest == entries_.end() || at->second.last_use < oldest->second.last_use) oldest = at;
    }
    if (oldest == entries_.end()) return;
    Entry& entry = oldest->second;
    if (entry.unwritten && !write(oldest->first, entry)) {
      unwritable.insert(oldest->first);
      continue;
    }
    num_bytes_ -= entry.bytes;
    entries_.erase(oldest);
  }
}

// False on a full disk: who asked for other weights must not pay for that, so these stay in memory.
bool SnapshotCache::write(const api::SnapshotId& id, Entry& entry) {
  try {
    write_adapter_state({.weights = entry.adapter}, entry.dir, engine_.model().dir, metadata_);
    return true;
  } catch (const Error& error) {
    log(LogLevel::kError,
        fmt::format("sampler weights {} stay in memory: {}", id.text, error.what()));
    return false;
  }
}

std::shared_ptr<model::LoraAdapter> SnapshotCache::get(const api::SnapshotId& id,
                                                       const std::string& dir) {
  const auto found = entries_.find(id);
  if (found != entries_.end()) {
    found->second.last_use = ++clock_;
    return found->second.adapter;
  }
  if (dir.empty()) {
    throw Error(ErrorCode::kNotFound, fmt::format("sampler weights {}: they are gone", id.text));
  }
  std::shared_ptr<model::LoraAdapter> adapter =
      model::load_adapter(room_.backend(), engine_.model(), dir);
  insert(id, {.adapter = adapter, .dir = dir});
  return adapter;
}

void SnapshotCache::release(const api::SnapshotId& id) {
  const auto found = entries_.find(id);
  if (found == entries_.end()) return;
  num_bytes_ -= found->second.bytes;
  entries_.erase(found);
}

}  // namespace strata::engine
