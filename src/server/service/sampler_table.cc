// SPDX-License-Identifier: Apache-2.0
#include "server/service/sampler_table.h"

#include <fmt/format.h>

#include <utility>

#include "base/check.h"
#include "server/service/ids_below.h"

namespace strata::server {

std::string SamplerTable::id_of(const std::string& session, int64_t number) {
  return fmt::format("{}:sample:{}", session, number);
}

SamplerTable::Added SamplerTable::add(const std::string& id, LiveSampler sampler) {
  Added added = {.is_new = !rows_.contains(id)};
  OfSession& of_session = sessions_[sampler.session];
  if (added.is_new) ++of_session.count;
  std::erase(of_session.ephemerals, id);
  if (sampler.is_ephemeral) of_session.ephemerals.push_back(id);
  if (std::cmp_greater(of_session.ephemerals.size(), max_ephemerals_)) {
    added.one_too_many = of_session.ephemerals.front();
  }
  rows_.insert_or_assign(id, std::move(sampler));
  return added;
}

LiveSampler SamplerTable::take(const std::string& id) {
  const auto found = rows_.find(id);
  CHECK(found != rows_.end(), id);
  LiveSampler sampler = std::move(found->second);
  rows_.erase(found);
  const auto of_session = sessions_.find(sampler.session);
  std::erase(of_session->second.ephemerals, id);
  if (--of_session->second.count == 0) sessions_.erase(of_session);
  return sampler;
}

const LiveSampler* SamplerTable::find(const std::string& id, const std::string& tenant) const {
  const auto found = rows_.find(id);
  return found != rows_.end() && found->second.tenant == tenant ? &found->second : nullptr;
}

int64_t SamplerTable::count_of(const std::string& session) const {
  const auto found = sessions_.find(session);
  return found == sessions_.end() ? 0 : found->second.count;
}

std::vector<std::string> SamplerTable::of_session(const std::string& session) const {
  return ids_below(rows_, session + ":sample:");
}

}  // namespace strata::server
