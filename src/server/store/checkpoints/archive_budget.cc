// SPDX-License-Identifier: Apache-2.0
#include "server/store/checkpoints/archive_budget.h"

#include <utility>

#include "base/files.h"

namespace strata::server {

bool ArchiveBudget::take_evicting(const std::string& path, const std::string& tenant, int64_t bytes,
                                  double now) {
  const MutexLock lock(mutex_);
  if (bytes > limit_.most()) return false;
  archives_.erase(path);
  SharedLimit::Share share = limit_.take(tenant, bytes);
  while (!share) {
    const auto going = next_to_evict(tenant, bytes, now);
    if (going == archives_.end()) return false;
    remove_file(going->first);
    archives_.erase(going);
    share = limit_.take(tenant, bytes);
  }
  archives_.emplace(path, Archive{tenant, std::move(share), now});
  return true;
}

ArchiveBudget::Archives::iterator ArchiveBudget::least_recently_read_of(const std::string& tenant) {
  auto oldest = archives_.end();
  for (auto at = archives_.begin(); at != archives_.end(); ++at) {
    if (at->second.tenant != tenant || !at->second.is_packed) continue;
    if (oldest == archives_.end() || at->second.read < oldest->second.read) oldest = at;
  }
  return oldest;
}

const std::string* ArchiveBudget::largest_holder_above(int64_t bytes) {
  int64_t most = bytes;
  const std::string* holder = nullptr;
  for (const auto& [path, archive] : archives_) {
    const int64_t held = limit_.used(archive.tenant);
    if (held <= most) continue;
    most = held;
    holder = &archive.tenant;
  }
  return holder;
}

ArchiveBudget::Archives::iterator ArchiveBudget::next_to_evict(const std::string& tenant,
                                                               int64_t bytes, double now) {
  const auto own = least_recently_read_of(tenant);
  if (own != archives_.end()) return own;
  const std::string* holder = largest_holder_above(bytes);
  if (holder == nullptr) return archives_.end();
  const auto other = least_recently_read_of(*holder);
  const bool may_go = other != archives_.end() && now - other->second.read >= kIdle;
  return may_go ? other : archives_.end();
}

void ArchiveBudget::finish_packing(const std::string& path) {
  const MutexLock lock(mutex_);
  const auto found = archives_.find(path);
  if (found == archives_.end()) return;
  found->second.is_packed = file_exists(path);
  if (!found->second.is_packed) archives_.erase(found);
}

void ArchiveBudget::touch(const std::string& path, double now) {
  const MutexLock lock(mutex_);
  const auto found = archives_.find(path);
  if (found != archives_.end()) found->second.read = now;
}

void ArchiveBudget::drop(const std::string& path) {
  const MutexLock lock(mutex_);
  archives_.erase(path);
}

void ArchiveBudget::remove_idle(double now, double seconds) {
  const MutexLock lock(mutex_);
  std::erase_if(archives_, [&](const auto& item) {
    if (!item.second.is_packed || now - item.second.read <= seconds) return false;
    remove_file(item.first);
    return true;
  });
}

}  // namespace strata::server
