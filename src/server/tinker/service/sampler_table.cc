// SPDX-License-Identifier: Apache-2.0
#include "server/tinker/service/sampler_table.h"

#include <fmt/format.h>

#include <iterator>
#include <utility>

#include "base/check.h"
#include "server/tinker/service/ids_below.h"

namespace strata::server {
namespace {

// Bytes of a row without its texts, with what maps, the lease and the heap add.
constexpr int64_t kRowBytes = 512;
constexpr int64_t kReaderBytes = 96;

int64_t bytes_of(const std::string& id, const LiveSampler& sampler) {
  const auto path = sampler.model_path ? std::ssize(*sampler.model_path) : 0;
  const int64_t as_reader = sampler.reads_anothers
                                ? kReaderBytes + std::ssize(id) + std::ssize(sampler.snapshot.text)
                                : 0;
  return kRowBytes + as_reader + std::ssize(id) + std::ssize(sampler.tenant) +
         std::ssize(sampler.session) + std::ssize(sampler.base_name) + path +
         std::ssize(sampler.snapshot.text) + std::ssize(sampler.dir);
}

}  // namespace

std::string SamplerTable::id_of(const std::string& session, int64_t number) {
  return id_of(session) + fmt::to_string(number);
}

SharedLimit::Share SamplerTable::take_bytes_dropping_idle(const std::string& id,
                                                          const LiveSampler& sampler) {
  const int64_t bytes = bytes_of(id, sampler);
  SharedLimit::Share share = bytes_.take(sampler.tenant, bytes);
  const auto idle = idle_.find(sampler.tenant);
  while (!share && idle != idle_.end() && !idle->second.empty()) {
    take(*idle->second.front());
    share = bytes_.take(sampler.tenant, bytes);
  }
  return share;
}

bool SamplerTable::would_evict(const std::string& id, const std::string& session) const {
  const auto found = sessions_.find(session);
  return contains(id) || (found != sessions_.end() &&
                          std::cmp_greater_equal(found->second.ephemerals.size(), max_ephemerals_));
}

int64_t SamplerTable::evict_for(const std::string& id, const LiveSampler& sampler, Added& added) {
  const std::deque<std::string>& ephemerals = sessions_[sampler.session].ephemerals;
  int64_t left = 0;
  const auto remove = [&](const std::string& of) {
    const auto at = rows_.find(of);
    left += at->second.bytes.amount();
    return erase(at);
  };
  if (rows_.contains(id)) added.replaced = remove(id);
  if (sampler.is_ephemeral && std::cmp_greater_equal(ephemerals.size(), max_ephemerals_)) {
    added.crowded_out = ephemerals.front();
    added.evicted_row = remove(*added.crowded_out);
  }
  return left;
}

SamplerTable::Added SamplerTable::add(const std::string& id, LiveSampler sampler,
                                      SharedLimit::Share bytes) {
  Added added;
  const int64_t left = evict_for(id, sampler, added);
  if (sampler.is_ephemeral) sessions_[sampler.session].ephemerals.push_back(id);
  if (!bytes) bytes = take_bytes_dropping_idle(id, sampler);
  if (!bytes && sampler.is_ephemeral) bytes = bytes_.take(sampler.tenant, left);
  const bool is_kept = sampler.is_ephemeral || bytes;
  added.row = std::make_shared<const LiveSampler>(std::move(sampler));
  if (is_kept) insert(id, added.row, std::move(bytes));
  return added;
}

void SamplerTable::insert(const std::string& id, const Row& row, SharedLimit::Share bytes) {
  const auto at = rows_.try_emplace(id, Kept{row, std::move(bytes)}).first;
  if (row->reads_anothers) readers_.emplace(row->snapshot.text, id);
  if (row->is_ephemeral) return;
  Idle& idle = idle_[row->tenant];
  at->second.idle = idle.insert(idle.end(), &at->first);
}

SamplerTable::Row SamplerTable::take(const std::string& id) {
  const auto found = rows_.find(id);
  CHECK(found != rows_.end(), id);
  return erase(found);
}

int64_t SamplerTable::drop_readers(const std::string& checkpoint, int64_t most) {
  int64_t count = 0;
  for (; count < most; ++count) {
    const auto at = readers_.lower_bound({checkpoint, ""});
    if (at == readers_.end() || at->first != checkpoint) break;
    take(std::string(at->second));
  }
  return count;
}

// Its tenant keeps its list of idle ones, also an empty one.
SamplerTable::Row SamplerTable::erase(Rows::iterator at) {
  Row row = std::move(at->second.row);
  if (at->second.idle) idle_.at(row->tenant).erase(*at->second.idle);
  const auto of_session = sessions_.find(row->session);
  if (row->is_ephemeral && of_session != sessions_.end())
    std::erase(of_session->second.ephemerals, at->first);
  if (row->reads_anothers) readers_.erase({row->snapshot.text, at->first});
  rows_.erase(at);
  return row;
}

bool SamplerTable::contains(const std::string& id) const {
  const auto found = rows_.find(id);
  return found != rows_.end() && sessions_.contains(found->second.row->session);
}

SamplerTable::Row SamplerTable::touch_sampler(const std::string& id, const std::string& tenant) {
  const auto found = rows_.find(id);
  if (found == rows_.end()) return nullptr;
  Kept& kept = found->second;
  if (kept.row->tenant != tenant || !sessions_.contains(kept.row->session)) return nullptr;
  if (kept.idle) {
    Idle& idle = idle_.at(tenant);
    idle.splice(idle.end(), idle, *kept.idle);
  }
  return kept.row;
}

bool SamplerTable::has_any(const std::string& session) const {
  return sessions_.contains(session) && !of_session(session, 1).empty();
}

std::vector<std::string> SamplerTable::of_session(const std::string& session, int64_t most) const {
  return ids_below(rows_, id_of(session), most);
}

int64_t SamplerTable::count_of(const std::string& session) const {
  const auto found = sessions_.find(session);
  if (found == sessions_.end()) return 0;
  return found->second.stored + std::ssize(found->second.ephemerals);
}

}  // namespace strata::server
