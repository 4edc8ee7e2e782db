// SampleRunner's rows and the room they share: pages of the cache, states and places in the batch.
// A row that runs has pages reserved for all it may come to hold; one that is aside for what it
// keeps, or for nothing.
#include <algorithm>
#include <functional>

#include "engine/sampling/sample_runner.h"

namespace strata::engine {
namespace {

// A row that runs on is not set aside again before it has sampled so many tokens, and a part of
// what it had to read again: else a stream of short samples could keep it from getting on at all.
constexpr int64_t kLeastRun = 16;
constexpr int64_t kReadForOneSampled = 8;

}  // namespace

uint64_t SampleRunner::owner(const api::TenantId& tenant) {
  return std::hash<std::string>()(tenant.text);
}

int64_t SampleRunner::prompt_size(const Row& row) const {
  return std::ssize(requests_.at(row.request).sample().prompt);
}

// Pages of a row with so many tokens of its own, beside those of its request's prompt.
int64_t SampleRunner::row_pages(const Row& row, int64_t new_tokens, bool shares_prompt) const {
  const KvPool& pool = engine_.kv_pool();
  const int64_t prompt = prompt_size(row);
  const int64_t all = pool.pages_for(prompt + new_tokens);
  return all - (shares_prompt ? (prompt - 1) / pool.page_size() : pool.pages_for(prompt));
}

int64_t SampleRunner::row_pages(const Row& row, int64_t new_tokens) const {
  return row_pages(row, new_tokens, row.shares_prompt);
}

SampleRunner::Need SampleRunner::need_to_resume(const Row& row) const {
  const Request& request = requests_.at(row.request);
  const int64_t max_tokens = request.sample().max_tokens;
  if (row.place == Place::kAsideWithPages)
    return {.pages = row_pages(row, max_tokens) - row.pages, .states = 0};
  const bool shares_prompt = request.sample().num_samples > 1;
  Need need{.pages = row_pages(row, max_tokens, shares_prompt), .states = 1};
  if (!request.holds_prompt) {
    need.pages += request.prompt_pages;
    need.states += request.prompt_states;
  }
  return need;
}

bool SampleRunner::has_room(const Need& need) const {
  const int64_t pages = engine_.kv_pool().max_pages();
  return loop_.num_running() < max_rows_ && (pages == 0 || reserved_pages_ + need.pages <= pages) &&
         need.states <= free_states();
}

void SampleRunner::reserve(Row& row, int64_t pages) {
  reserved_pages_ += pages - row.pages;
  row.pages = pages;
}

void SampleRunner::hold_prompt(Request& request, bool holds) {
  if (request.holds_prompt == holds) return;
  request.holds_prompt = holds;
  const int64_t sign = holds ? 1 : -1;
  reserved_pages_ += sign * request.prompt_pages;
  reserved_states_ += sign * request.prompt_states;
}

// The scheduler counts on the prompt of a request that has rows to come.
void SampleRunner::let_go_of_prompt(Request& request) {
  const bool is_used = std::any_of(request.rows.begin(), request.rows.end(), [this](size_t id) {
    return rows_.at(id).place != Place::kAside;
  });
  if (request.closed && !is_used) hold_prompt(request, false);
}

bool SampleRunner::may_be_set_aside(size_t id) const {
  const Row& row = rows_.at(id);
  return row.place == Place::kRuns && loop_.num_sampled(id) >= row.runs_until;
}

void SampleRunner::set_aside(size_t id, bool keep) {
  Row& row = rows_.at(id);
  aside_[tenant_of(row)].push_back(id);
  if (loop_.set_aside(id, keep)) {
    row.place = Place::kAsideWithPages;
    reserve(row, row_pages(row, loop_.num_sampled(id)));
  } else {
    forget_pages(row);
  }
}

void SampleRunner::forget_pages(Row& row) {
  row.place = Place::kAside;
  reserve(row, 0);
  --reserved_states_;
  let_go_of_prompt(requests_.at(row.request));
}

bool SampleRunner::give_up_pages(const api::TenantId* tenant, size_t but) {
  for (auto& [id, row] : rows_) {
    if (id == but || row.place != Place::kAsideWithPages) continue;
    if (tenant != nullptr && tenant_of(row) != *tenant) continue;
    loop_.give_up_pages(id);
    forget_pages(row);
    return true;
  }
  return false;
}

// The row that would be read again soonest; with `keep` only one whose pages need not go.
std::optional<size_t> SampleRunner::row_to_set_aside(const api::TenantId& tenant, const Need& need,
                                                     bool keep) const {
  const int64_t max_pages = engine_.kv_pool().max_pages();
  std::optional<size_t> best;
  int64_t fewest = 0;
  for (const auto& [id, row] : rows_) {
    if (tenant_of(row) != tenant || !may_be_set_aside(id)) continue;
    const int64_t sampled = loop_.num_sampled(id);
    const int64_t kept = reserved_pages_ - row.pages + row_pages(row, sampled);
    if (keep && max_pages > 0 && kept + need.pages > max_pages) continue;
    const int64_t tokens = prompt_size(row) + sampled;
    if (best && (fewest < tokens || (fewest == tokens && *best > id))) continue;
    best = id;
    fewest = tokens;
  }
  return best;
}

bool SampleRunner::take_room(const api::TenantId& tenant, const Need& need) {
  if (need.states <= free_states()) {
    if (const auto row = row_to_set_aside(tenant, need, true)) {
      set_aside(*row, true);
      return true;
    }
  }
  if (give_up_pages(&tenant, kNoRow)) return true;
  if (const auto row = row_to_set_aside(tenant, need, false)) {
    set_aside(*row, false);
    return true;
  }
  return false;
}

// Of that tenant's rows; and where nothing runs, of all that is kept for later.
void SampleRunner::make_room(const api::TenantId& tenant, const Need& need) {
  while (!tenant.empty() && !has_room(need) && take_room(tenant, need)) {
  }
  while (loop_.num_running() == 0 && !has_room(need) && give_up_pages(nullptr, kNoRow)) {
  }
}

void SampleRunner::resume(const api::ResumeRow& which) {
  const auto found = aside_.find(which.tenant);
  if (found == aside_.end()) return;
  const size_t id = found->second.front();
  Row& row = rows_.at(id);
  while (!which.takes_from.empty() && !has_room(need_to_resume(row)) &&
         take_room(which.takes_from, need_to_resume(row))) {
  }
  // Where nothing runs, what is kept for later must not hold up what could run now: other rows'
  // pages go first, and its own so that a request that has begun can end.
  while (loop_.num_running() == 0 && !has_room(need_to_resume(row)) &&
         (give_up_pages(nullptr, id) || give_up_pages(nullptr, kNoRow))) {
  }
  const Need need = need_to_resume(row);
  if (!has_room(need)) return;
  found->second.pop_front();
  if (found->second.empty()) aside_.erase(found);
  Request& request = requests_.at(row.request);
  int64_t reread = 0;
  if (row.place == Place::kAside) {
    reread = prompt_size(row) + loop_.num_sampled(id);
    row.shares_prompt = request.sample().num_samples > 1;
    hold_prompt(request, true);
    ++reserved_states_;
  }
  row.place = Place::kRuns;
  row.runs_until = loop_.num_sampled(id) + std::max(kLeastRun, reread / kReadForOneSampled);
  reserve(row, row_pages(row, request.sample().max_tokens));
  loop_.resume(id);
}

// A row that has ended, or whose request has.
void SampleRunner::forget_row(size_t id) {
  Row& row = rows_.at(id);
  if (row.place != Place::kRuns) {
    const auto found = aside_.find(tenant_of(row));
    std::erase(found->second, id);
    if (found->second.empty()) aside_.erase(found);
  }
  if (row.place != Place::kAside) --reserved_states_;
  reserve(row, 0);
  rows_.erase(id);
}

std::vector<api::SampleShare> SampleRunner::shares() const {
  std::map<api::TenantId, api::SampleShare> shares;
  for (const auto& [id, request] : requests_) {
    if (request.holds_prompt) shares[request.command->tenant].pages += request.prompt_pages;
  }
  for (const auto& [id, row] : rows_) {
    const Request& request = requests_.at(row.request);
    api::SampleShare& share = shares[request.command->tenant];
    share.pages += row.pages;
    if (row.place == Place::kRuns) {
      ++share.rows;
      if (!may_be_set_aside(id)) continue;
      ++share.rows_to_take;
      if (request.sample().num_samples == 1) share.pages_to_take += request.prompt_pages;
    } else {
      ++share.rows_aside;
    }
    share.pages_to_take += row.pages;
  }
  std::vector<api::SampleShare> out;
  for (auto& [tenant, share] : shares) {
    share.tenant = tenant;
    if (const auto aside = aside_.find(tenant); aside != aside_.end()) {
      const Need need = need_to_resume(rows_.at(aside->second.front()));
      share.pages_to_resume = need.pages;
      share.states_to_resume = need.states;
    }
    out.push_back(std::move(share));
  }
  return out;
}

}  // namespace strata::engine
