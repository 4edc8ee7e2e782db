// SPDX-License-Identifier: Apache-2.0
#include "server/tinker/service/model_table.h"

#include <fmt/format.h>

#include "base/check.h"
#include "server/tinker/service/ids_below.h"

namespace strata::server {

std::string ModelTable::id_of(const std::string& session, int64_t number) {
  return fmt::format("{}:train:{}", session, number);
}

std::string ModelTable::session_of(const std::string& id) {
  const size_t end = id.find(":train:");
  return end == std::string::npos ? "" : id.substr(0, end);
}

void ModelTable::add(const std::string& id, LiveModel model) {
  CHECK(rows_.try_emplace(id, std::move(model)).second, id);
}

void ModelTable::remove(const std::string& id) { rows_.erase(id); }

LiveModel* ModelTable::find(const std::string& id, const std::string& tenant) {
  const auto found = rows_.find(id);
  return found != rows_.end() && found->second.tenant == tenant ? &found->second : nullptr;
}

std::vector<std::string> ModelTable::of_session(const std::string& session) const {
  return ids_below(rows_, session + ":train:");
}

}  // namespace strata::server
