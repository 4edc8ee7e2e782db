// SPDX-License-Identifier: Apache-2.0
#include "engine/sampling/sampling_loop.h"

#include <algorithm>
#include <map>
#include <utility>

#include "base/trace.h"

namespace strata::engine {
namespace {

// A row that runs on is not set aside again before it has sampled so many tokens, and a part of
// what it had to read again: else a stream of short samples could keep it from getting on at all.
constexpr int64_t kLeastRun = 16;
constexpr int64_t kReadForOneSampled = 8;
constexpr size_t kNoRow = SIZE_MAX;

// The prompt's state, where its rows share it.
int64_t prompt_states(const SampleGroup& group) {
  return api::CachePages::prompt_states(group.answer->sample());
}

bool is_preemptible(const SampleRow& row) {
  return !row.aside() && row.num_sampled() >= row.runs_until;
}

}  // namespace

SamplingLoop::SamplingLoop(Stages& stages,
                           const std::vector<std::unique_ptr<PrefixCache>>& prefixes)
    : stages_(&stages) {
  for (size_t i = 0; i < stages.size(); ++i) {
    add_part(stages.sampler(i), stages.sampling(i), prefixes.empty() ? nullptr : prefixes[i].get());
  }
}

size_t SamplingLoop::add(const api::SampleRequest& request) {
  const size_t group = open_group(request, nullptr);
  const size_t row = add_row(group, request.seed);
  close_group(group);
  return row;
}

size_t SamplingLoop::open_group(const api::SampleRequest& request,
                                std::shared_ptr<model::LoraAdapter> adapter, uint64_t owner) {
  return open_group(std::make_shared<const api::SampleRequest>(request),
                    StagedAdapter{std::move(adapter)}, owner);
}

size_t SamplingLoop::open_group(const std::shared_ptr<const api::SampleRequest>& request,
                                const StagedAdapter& adapter, uint64_t owner,
                                const std::shared_ptr<SampleAnswer>& answer) {
  size_t group = 0;
  for (size_t i = 0; i < parts_.size(); ++i) {  // the first one checks
    group =
        parts_[i]->book.open_group(request, adapter.empty() ? nullptr : adapter[i], owner, answer);
  }
  return group;
}

void SamplingLoop::give_weights(size_t group, const StagedAdapter& adapter) {
  for (size_t i = 0; i < parts_.size(); ++i) parts_[i]->book.give_weights(group, adapter[i]);
}

// What a row ended with is told once.
api::SampleResult SamplingLoop::take_result(size_t id) {
  for (size_t i = 1; i < parts_.size(); ++i) {
    parts_[i]->book.set_error(id, "");
    static_cast<void>(parts_[i]->book.take_result(id));
  }
  return book().take_result(id);
}

std::span<const SampledToken> SamplingLoop::step() {
  if (done()) return {};
  const TraceSpan span("sampling step", "step", parts_[0]->step.num_steps() + 1);
  std::span<const SampledToken> sampled;
  const auto of_rank = [&](int rank) {
    Part& part = *parts_[static_cast<size_t>(rank)];
    part.step.plan(step_tokens_);
    const std::span<const SampledToken> own = part.pass.run();
    if (rank == 0) sampled = own;
  };
  stages_ == nullptr ? of_rank(0) : stages_->run_sampling(of_rank);
  return sampled;
}

std::vector<api::SampleResult> sample(Runner& runner,
                                      const std::vector<api::SampleRequest>& requests) {
  for (size_t i = 0; i < requests.size(); ++i) runner.engine().check(requests[i], i);
  SamplingLoop loop(runner);
  std::vector<size_t> ids;
  for (const api::SampleRequest& request : requests) ids.push_back(loop.add(request));
  while (!loop.done()) loop.step();
  std::vector<api::SampleResult> results;
  for (const size_t id : ids) results.push_back(loop.take_result(id));
  return results;
}

int64_t Preemption::prompt_pages(const SampleGroup& group) const {
  return engine_.kv_pool().need().of_prompt(*group.request);
}

// Pages of a row with so many tokens of its own, but those of its group's prompt.
int64_t Preemption::row_pages(const SampleRow& row, int64_t new_tokens, bool shares_prompt) const {
  return engine_.kv_pool().need().behind_prompt(*group_of(row).request, new_tokens, shares_prompt);
}

// Tokens of its own that a row which is aside may have pages for: drafts take them in advance,
// those that are read and behind these those that are made.
int64_t Preemption::kept_tokens(const SampleRow& row) const {
  const int64_t ahead = std::max<int64_t>(0, 2 * engine_.options().draft_tokens - 2);
  return std::min(row.num_sampled() + ahead, group_of(row).request->max_tokens);
}

int64_t Preemption::reserved_pages(const SampleRow& row) const {
  if (!row.resident()) return 0;
  const int64_t tokens = row.aside() ? kept_tokens(row) : group_of(row).request->max_tokens;
  return row_pages(row, tokens, row.shares_prompt);
}

int64_t Preemption::reserved_pages() const {
  int64_t pages = 0;
  for (const auto& [id, group] : loop_.groups()) {
    if (group.holds_prompt()) pages += prompt_pages(group);
  }
  for (const auto& [id, row] : loop_.rows()) pages += reserved_pages(row);
  return pages;
}

int64_t Preemption::free_states() const {
  const int64_t limit = engine_.state_pool().max_slabs();
  if (limit == 0 || engine_.cache_layout().state_bytes() == 0) return INT64_MAX;
  int64_t reserved = 0;
  for (const auto& [id, group] : loop_.groups()) {
    if (group.holds_prompt()) reserved += prompt_states(group);
  }
  for (const auto& [id, row] : loop_.rows()) reserved += row.resident() ? 1 : 0;
  return std::max<int64_t>(0, limit - reserved);
}

int64_t Preemption::free_rows() const {
  return std::max<int64_t>(0, max_rows_ - loop_.num_running());
}

api::PageNeed Preemption::space_needed_to_resume(const SampleRow& row) const {
  const SampleGroup& group = group_of(row);
  const int64_t max_tokens = group.request->max_tokens;
  if (row.resident())
    return {.pages = row_pages(row, max_tokens, row.shares_prompt) - reserved_pages(row)};
  const bool shares_prompt = group.answer->sample().num_samples > 1;
  api::PageNeed need{.pages = row_pages(row, max_tokens, shares_prompt), .states = 1};
  if (!group.holds_prompt()) {
    need.pages += prompt_pages(group);
    need.states += prompt_states(group);
  }
  return need;
}

bool Preemption::has_budget(const api::PageNeed& need) const {
  const int64_t pages = engine_.kv_pool().max_pages();
  return free_rows() > 0 && (pages == 0 || reserved_pages() + need.pages <= pages) &&
         need.states <= free_states();
}

bool Preemption::evict_preempted(const api::TenantId* tenant, size_t except) {
  for (const auto& [id, row] : loop_.rows()) {
    if (id == except || !row.aside() || !row.resident()) continue;
    if (tenant != nullptr && tenant_of(row) != *tenant) continue;
    loop_.give_up_pages(id);
    return true;
  }
  return false;
}

// The row that would be read again soonest; with `keep` only one whose pages need not go.
std::optional<size_t> Preemption::find_victim(const api::TenantId& tenant,
                                              const api::PageNeed& need, bool keep) const {
  const int64_t max_pages = engine_.kv_pool().max_pages();
  const int64_t reserved = reserved_pages();
  std::optional<size_t> best;
  int64_t fewest = 0;
  for (const auto& [id, row] : loop_.rows()) {
    if (tenant_of(row) != tenant || !is_preemptible(row)) continue;
    const int64_t sampled = row.num_sampled();
    // What would be held of all rows if this one were aside, with its pages.
    const int64_t kept =
        reserved - reserved_pages(row) + row_pages(row, kept_tokens(row), row.shares_prompt);
    if (keep && max_pages > 0 && kept + need.pages > max_pages) continue;
    const int64_t tokens = group_of(row).prompt_size() + sampled;
    if (best && fewest < tokens) continue;
    best = id;
    fewest = tokens;
  }
  return best;
}

bool Preemption::preempt_one(const api::TenantId& tenant, const api::PageNeed& need) {
  // From the cheapest on: a row that keeps its pages reads nothing again, but keeps its state too;
  // one that is aside already loses a read that it may need; one that runs loses it for certain.
  if (need.states <= free_states()) {
    if (const auto row = find_victim(tenant, need, /*keep=*/true)) {
      loop_.preempt_row(*row, /*keep=*/true);
      return true;
    }
  }
  if (evict_preempted(&tenant, kNoRow)) return true;
  const auto row = find_victim(tenant, need, /*keep=*/false);
  if (row) loop_.preempt_row(*row, /*keep=*/false);
  return row.has_value();
}

void Preemption::make_space(const api::TenantId& tenant, const api::Sample& sample, int64_t index) {
  const api::PageNeed need = engine_.kv_pool().need().to_join(sample, index);
  while (!tenant.empty() && !has_budget(need) && preempt_one(tenant, need)) {
  }
  while (loop_.num_running() == 0 && !has_budget(need) && evict_preempted(nullptr, kNoRow)) {
  }
}

// The one that was set aside first.
std::optional<size_t> Preemption::find_row_to_resume(const api::TenantId& tenant) const {
  std::optional<size_t> best;
  for (const auto& [id, row] : loop_.rows()) {
    if (!row.aside() || tenant_of(row) != tenant) continue;
    if (!best || row.preempt_order < loop_.rows().at(*best).preempt_order) best = id;
  }
  return best;
}

void Preemption::make_space_to_resume(size_t id, const api::TenantId& takes_from) {
  const SampleRow& row = loop_.row(id);
  while (!takes_from.empty() && !has_budget(space_needed_to_resume(row)) &&
         preempt_one(takes_from, space_needed_to_resume(row))) {
  }
  // Where nothing runs, what is kept for later must not hold up what could run now: other rows'
  // pages go first, and its own so that a request that has begun can end.
  while (loop_.num_running() == 0 && !has_budget(space_needed_to_resume(row)) &&
         (evict_preempted(nullptr, id) || evict_preempted(nullptr, kNoRow))) {
  }
}

void Preemption::try_resume(const api::ResumeRow& which) {
  const std::optional<size_t> found = find_row_to_resume(which.tenant);
  if (!found) return;
  make_space_to_resume(*found, which.takes_from);
  const SampleRow& row = loop_.row(*found);
  if (!has_budget(space_needed_to_resume(row))) return;
  const int64_t reread = row.resident() ? 0 : group_of(row).prompt_size() + row.num_sampled();
  loop_.resume(*found, row.num_sampled() + std::max(kLeastRun, reread / kReadForOneSampled));
}

// What it holds, and what it would free.
void Preemption::add_to_share(const SampleRow& row, api::SampleShare& share) const {
  const int64_t pages = reserved_pages(row);
  share.pages += pages;
  if (row.aside()) {
    ++share.preempted_rows;
  } else {
    ++share.rows;
    if (!is_preemptible(row)) return;
    ++share.rows_to_take;
    const SampleGroup& group = group_of(row);
    if (group.answer->sample().num_samples == 1) share.pages_to_take += prompt_pages(group);
  }
  share.pages_to_take += pages;
}

std::vector<api::SampleShare> Preemption::shares() const {
  struct Held {
    api::SampleShare share;
    const SampleRow* next = nullptr;  // to run on
  };
  std::map<api::TenantId, Held> tenants;
  for (const auto& [id, group] : loop_.groups()) {
    if (!group.holds_prompt()) continue;
    tenants[group.answer->command->tenant].share.pages += prompt_pages(group);
  }
  for (const auto& [id, row] : loop_.rows()) {
    auto& [share, next] = tenants[tenant_of(row)];
    add_to_share(row, share);
    if (row.aside() && (next == nullptr || row.preempt_order < next->preempt_order)) next = &row;
  }
  std::vector<api::SampleShare> out;
  for (auto& [tenant, held] : tenants) {
    held.share.tenant = tenant;
    if (held.next != nullptr) {
      const api::PageNeed need = space_needed_to_resume(*held.next);
      held.share.pages_to_resume = need.pages;
      held.share.states_to_resume = need.states;
    }
    out.push_back(std::move(held.share));
  }
  return out;
}

}  // namespace strata::engine
