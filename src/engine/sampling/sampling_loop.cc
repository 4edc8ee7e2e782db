// SPDX-License-Identifier: Apache-2.0
#include "engine/sampling/sampling_loop.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace strata::engine {

SamplingLoop::~SamplingLoop() {
  for (auto& [id, row] : rows_) release(row.pages, row.state);
  for (auto& [id, group] : groups_) release(group.pages, group.state);
}

void SamplingLoop::release(std::vector<void*>& pages, void*& state) {
  if (state != nullptr) engine_.state_pool().give_back(std::exchange(state, nullptr));
  for (void* page : pages) {
    if (page != nullptr) engine_.kv_pool().give_back(page);
  }
  pages.clear();
}

size_t SamplingLoop::open(std::shared_ptr<const api::SampleRequest> of,
                          std::shared_ptr<model::LoraAdapter> adapter, uint64_t owner) {
  const api::SampleRequest& request = *of;
  engine_.check(request, next_id_);
  SampleGroup group;
  group.request = std::move(of);
  group.owner = owner;
  group.adapter = adapter == nullptr ? engine_.adapter_or_base(request.slot) : adapter.get();
  group.keep = std::move(adapter);
  const size_t prompt = request.prompt.size();
  if (request.wants_prompt_logprobs()) group.prompt.prompt_logprobs.assign(prompt, 0.0f);
  const auto k = static_cast<size_t>(request.topk_prompt_logprobs);
  group.prompt.topk_ids.assign(prompt * k, 0);
  group.prompt.topk_logprobs.assign(prompt * k, 0.0f);
  group.prompt.prompt_target_logprobs.assign(request.prompt_targets.ids.size(), 0.0f);
  const size_t draws = (prompt - 1) * static_cast<size_t>(request.prompt_draws);
  group.prompt.prompt_draw_ids.assign(draws, 0);
  group.prompt.prompt_draw_logprobs.assign(draws, 0.0f);
  groups_[next_group_] = std::move(group);
  return next_group_++;
}

size_t SamplingLoop::add_row(size_t group_id, uint64_t seed) {
  SampleGroup& group = groups_.at(group_id);
  CHECK(!group.closed, group_id);
  SampleRow row;
  row.group = group_id;
  row.seed = seed;
  row.first = group.num_added++ == 0;
  row.leads = !group.begun;
  row.resident = true;
  group.begun = true;
  ++group.num_rows;
  ++group.num_resident;
  rows_[next_id_] = std::move(row);
  active_.push_back(next_id_);
  return next_id_++;
}

void SamplingLoop::close(size_t group) {
  groups_.at(group).closed = true;
  drop_if_unused(group);
}

// Pages of the prompt are kept for rows that join it, for the first time or again.
void SamplingLoop::drop_if_unused(size_t id) {
  SampleGroup& group = groups_.at(id);
  if (group.holds_prompt()) return;
  release(group.pages, group.state);
  group.begun = group.ready = false;
  if (group.num_rows == 0) groups_.erase(id);
}

size_t SamplingLoop::add(const api::SampleRequest& request) {
  const size_t group = open(request, nullptr);
  const size_t row = add_row(group, request.seed);
  close(group);
  return row;
}

// The row has nothing in the cache any more. If it was to read the prompt, another one is.
void SamplingLoop::vacate(size_t id) {
  SampleRow& row = rows_.at(id);
  SampleGroup& group = group_of(row);
  release(row.pages, row.state);
  std::erase(active_, id);
  if (std::exchange(row.resident, false)) --group.num_resident;
  row.position = 0;
  row.drafts.clear();
  row.ahead.clear();  // its tokens are read again, and it is sampled again
  row.joined = false;
  if (std::exchange(row.leads, false) && !group.ready) {
    group.begun = false;
    for (const size_t other : active_) {
      if (rows_.at(other).group != row.group || group.begun) continue;
      rows_.at(other).leads = group.begun = true;
    }
  }
  drop_if_unused(row.group);
}

void SamplingLoop::finish(size_t id) {
  rows_.at(id).finished = true;
  vacate(id);
}

bool SamplingLoop::set_aside(size_t id, bool keep) {
  SampleRow& row = rows_.at(id);
  CHECK(!row.finished && !row.aside, id);
  row.aside = true;
  row.aside_order = ++num_asides_;
  const SampleGroup& group = group_of(row);
  const bool is_awaited = row.leads && !group.ready && (group.num_rows > 1 || !group.closed);
  if (!keep || is_awaited || row.pages.empty()) {
    vacate(id);
    return false;
  }
  std::erase(active_, id);
  return true;
}

void SamplingLoop::give_up_pages(size_t id) {
  CHECK(rows_.at(id).aside, id);
  vacate(id);
}

void SamplingLoop::resume(size_t id) {
  SampleRow& row = rows_.at(id);
  CHECK(!row.finished && row.aside, id);
  row.aside = false;
  if (!row.resident) {
    SampleGroup& group = group_of(row);
    row.resident = true;
    ++group.num_resident;
    row.leads = !group.begun;
    group.begun = true;
  }
  active_.insert(std::lower_bound(active_.begin(), active_.end(), id), id);
}

api::SampleResult SamplingLoop::take(size_t id) {
  SampleRow& row = rows_.at(id);
  CHECK(row.finished, id);
  SampleGroup& group = group_of(row);
  api::SampleResult result = std::move(row.result);
  const std::string error = std::move(row.error);
  if (row.first) {
    group.has_values = true;
    result.prompt_logprobs = std::move(group.prompt.prompt_logprobs);
    result.topk_ids = std::move(group.prompt.topk_ids);
    result.topk_logprobs = std::move(group.prompt.topk_logprobs);
    result.prompt_target_logprobs = std::move(group.prompt.prompt_target_logprobs);
    result.prompt_draw_ids = std::move(group.prompt.prompt_draw_ids);
    result.prompt_draw_logprobs = std::move(group.prompt.prompt_draw_logprobs);
  }
  const size_t group_id = row.group;
  --group.num_rows;
  rows_.erase(id);
  drop_if_unused(group_id);
  if (!error.empty()) throw Error(ErrorCode::kInvalidArgument, error);
  return result;
}

std::vector<api::SampleResult> Engine::sample(const std::vector<api::SampleRequest>& requests) {
  for (size_t i = 0; i < requests.size(); ++i) check(requests[i], i);
  SamplingLoop loop(*this);
  std::vector<size_t> ids;
  for (const api::SampleRequest& request : requests) ids.push_back(loop.add(request));
  while (!loop.done()) loop.step();
  std::vector<api::SampleResult> results;
  for (const size_t id : ids) results.push_back(loop.take(id));
  return results;
}

}  // namespace strata::engine
