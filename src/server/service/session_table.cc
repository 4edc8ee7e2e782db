#include "server/service/session_table.h"

#include <algorithm>

#include "base/check.h"

namespace strata::server {

void SessionTable::add(const std::string& id, const std::string& tenant, double now) {
  CHECK(rows_.try_emplace(id, Row{tenant, now}).second, id);
}

void SessionTable::remove(const std::string& id) { rows_.erase(id); }

bool SessionTable::contains(const std::string& id, const std::string& tenant) const {
  const auto found = rows_.find(id);
  return found != rows_.end() && found->second.tenant == tenant;
}

int64_t SessionTable::count_of(const std::string& tenant) const {
  return std::count_if(rows_.begin(), rows_.end(),
                       [&](const auto& entry) { return entry.second.tenant == tenant; });
}

bool SessionTable::touch(const std::string& id, const std::string& tenant, double now) {
  const auto found = rows_.find(id);
  if (found == rows_.end() || found->second.tenant != tenant) return false;
  found->second.last_seen = now;
  return true;
}

std::vector<std::string> SessionTable::silent(double now, double seconds) const {
  std::vector<std::string> ids;
  for (const auto& [id, row] : rows_) {
    if (now - row.last_seen > seconds) ids.push_back(id);
  }
  return ids;
}

void SessionTable::excuse(double now, double seconds) {
  for (auto& [id, row] : rows_) row.last_seen = std::min(now, row.last_seen + seconds);
}

}  // namespace strata::server
