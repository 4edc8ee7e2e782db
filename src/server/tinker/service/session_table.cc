// SPDX-License-Identifier: Apache-2.0
#include "server/tinker/service/session_table.h"

#include <algorithm>

#include "base/check.h"

namespace strata::server {

void SessionTable::add(const std::string& id, const std::string& tenant, double now) {
  CHECK(rows_.try_emplace(id, Row{tenant, now}).second, id);
  ++counts_[tenant];
}

void SessionTable::remove(const std::string& id) {
  const auto found = rows_.find(id);
  if (found == rows_.end()) return;
  const auto count = counts_.find(found->second.tenant);
  if (--count->second == 0) counts_.erase(count);
  rows_.erase(found);
}

bool SessionTable::contains(const std::string& id, const std::string& tenant) const {
  const auto found = rows_.find(id);
  return found != rows_.end() && found->second.tenant == tenant;
}

int64_t SessionTable::count_of(const std::string& tenant) const {
  const auto found = counts_.find(tenant);
  return found == counts_.end() ? 0 : found->second;
}

bool SessionTable::touch(const std::string& id, const std::string& tenant, double now) {
  const auto found = rows_.find(id);
  if (found == rows_.end() || found->second.tenant != tenant) return false;
  found->second.last_seen = now;
  return true;
}

std::vector<std::string> SessionTable::find_silent(double now, double seconds, size_t most) const {
  std::vector<std::string> ids;
  for (const auto& [id, row] : rows_) {
    if (ids.size() >= most) break;
    if (now - row.last_seen > seconds) ids.push_back(id);
  }
  return ids;
}

void SessionTable::excuse(double now, double seconds) {
  for (auto& [id, row] : rows_) row.last_seen = std::min(now, row.last_seen + seconds);
}

}  // namespace strata::server
