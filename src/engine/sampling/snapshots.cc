// SPDX-License-Identifier: Apache-2.0
#include "engine/sampling/snapshots.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>

#include "base/error.h"
#include "base/log.h"
#include "engine/adapter_state.h"

namespace strata::engine {
namespace {

std::string message_of(const std::exception_ptr& fault) {
  try {
    std::rethrow_exception(fault);
  } catch (const std::exception& error) {
    return error.what();
  }
}

}  // namespace

void SnapshotCache::put(const api::SnapshotId& id, StagedAdapter adapter, const std::string& dir,
                        bool ephemeral) {
  put_entry(id, {.adapter = std::move(adapter), .dir = dir, .unwritten = ephemeral});
}

void SnapshotCache::put_entry(const api::SnapshotId& id, Entry entry) {
  release(id);
  entry.bytes = stages_.adapter_bytes(specs_of(*entry.adapter[0]), false);
  entry.last_use = ++clock_;
  num_bytes_ += entry.bytes;
  entries_[id] = std::move(entry);
  for (auto& [other, held] : entries_) held.could_not = false;
  evict_to_limit();
}

// The newest stays, and those that rows use would not give their memory back.
std::map<api::SnapshotId, SnapshotCache::Entry>::iterator SnapshotCache::find_oldest_evictable() {
  auto oldest = entries_.end();
  for (auto at = entries_.begin(); at != entries_.end(); ++at) {
    const Entry& entry = at->second;
    if (entry.last_use == clock_ || entry.adapter[0].use_count() > 1) continue;
    if (entry.written != nullptr || entry.could_not) continue;
    if (oldest == entries_.end() || entry.last_use < oldest->second.last_use) oldest = at;
  }
  return oldest;
}

void SnapshotCache::evict_to_limit() {
  int64_t leaving = 0;
  for (const auto& [id, entry] : entries_) leaving += entry.written ? entry.bytes : 0;
  // All processes let the same go.
  while (stages_.is_so_on_any_process(num_bytes_ - leaving > max_bytes_)) {
    const auto found = find_oldest_evictable();
    if (found == entries_.end()) return;
    Entry& entry = found->second;
    if (entry.unwritten) {
      request_write(found->first, entry);
      leaving += entry.bytes;
      continue;
    }
    num_bytes_ -= entry.bytes;
    entries_.erase(found);
  }
}

void SnapshotCache::request_write(const api::SnapshotId& id, Entry& entry) {
  entry.written = stages_.merge_parts(entry.adapter);
  files_.ask({.what = FileJob::What::kWriteWeights,
              .name = id.text,
              .dir = entry.dir,
              .weights = entry.written});
}

bool SnapshotCache::awaits_writes() const {
  if (num_bytes_ <= max_bytes_) return false;
  return std::any_of(entries_.begin(), entries_.end(),
                     [](const auto& entry) { return entry.second.written != nullptr; });
}

// On a full disk they stay in memory: who asked for other weights must not pay for that.
void SnapshotCache::finish_write(FileJob job) {
  const auto found = entries_.find(api::SnapshotId{job.name});
  // Released meanwhile, and its folder perhaps before it was there.
  if (found == entries_.end() || found->second.dir != job.dir) {
    files_.ask({.what = FileJob::What::kRemove, .name = job.name, .dir = job.dir});
    return;
  }
  Entry& entry = found->second;
  if (entry.written != job.weights) return;  // others by that name
  job.weights.reset();
  entry.written.reset();
  entry.unwritten = entry.could_not = job.fault != nullptr;
  if (job.fault != nullptr) {
    log(LogLevel::kError,
        fmt::format("sampler weights {} stay in memory: {}", job.name, message_of(job.fault)));
  }
  evict_to_limit();
}

StagedAdapter SnapshotCache::lookup_adapter(const api::SnapshotId& id) {
  const auto found = entries_.find(id);
  if (found == entries_.end()) return {};
  found->second.last_use = ++clock_;
  return found->second.adapter;
}

void SnapshotCache::request_read(const api::SnapshotId& id, const std::string& dir,
                                 const api::TenantId& tenant) {
  if (dir.empty()) {
    throw Error(ErrorCode::kNotFound, fmt::format("sampler weights {}: they are gone", id.text));
  }
  const auto [reading, is_new] = reading_.try_emplace(id, false);
  reading->second = false;
  if (is_new) files_.ask({.tenant = tenant, .name = id.text, .dir = dir});
}

StagedAdapter SnapshotCache::finish_read(FileJob job) {
  const api::SnapshotId id{job.name};
  const bool released = std::exchange(reading_[id], false);
  reading_.erase(id);
  if (job.fault != nullptr) std::rethrow_exception(job.fault);
  for (size_t i = 0; i < stages_.size(); ++i) job.parts[i]->refresh(stages_.sampling(i).backend());
  if (!released) put_entry(id, {.adapter = job.parts, .dir = job.dir});
  return job.parts;
}

StagedAdapter SnapshotCache::load(const api::SnapshotId& id, const std::string& dir) {
  StagedAdapter adapter;
  for (size_t i = 0; i < stages_.size(); ++i) {
    adapter.push_back(
        model::load_adapter(stages_.sampling(i).backend(), stages_.engine(i).model(), dir));
  }
  put_entry(id, {.adapter = adapter, .dir = dir});
  return adapter;
}

void SnapshotCache::release(const api::SnapshotId& id) {
  if (const auto reading = reading_.find(id); reading != reading_.end()) reading->second = true;
  const auto found = entries_.find(id);
  if (found == entries_.end()) return;
  num_bytes_ -= found->second.bytes;
  entries_.erase(found);
}

}  // namespace strata::engine
