// SPDX-License-Identifier: Apache-2.0
#include "engine/sampling/row_book.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace strata::engine {
namespace {

std::vector<int32_t> distinct_tokens(std::vector<int32_t> tokens) {
  std::sort(tokens.begin(), tokens.end());
  tokens.erase(std::unique(tokens.begin(), tokens.end()), tokens.end());
  return tokens;
}

// As many as are asked of the prompt.
api::SampleResult zeroed_prompt_values(const api::SampleRequest& request) {
  api::SampleResult values;
  const size_t prompt = request.prompt.size();
  if (request.wants_prompt_logprobs()) values.prompt_logprobs.assign(prompt, 0.0f);
  const auto k = static_cast<size_t>(request.topk_prompt_logprobs);
  values.topk_ids.assign(prompt * k, 0);
  values.topk_logprobs.assign(prompt * k, 0.0f);
  values.prompt_target_logprobs.assign(request.prompt_targets.ids.size(), 0.0f);
  const size_t draws = (prompt - 1) * static_cast<size_t>(request.prompt_draws);
  values.prompt_draw_ids.assign(draws, 0);
  values.prompt_draw_logprobs.assign(draws, 0.0f);
  return values;
}

// As many as are asked of the prompt's token there.
PromptValues zeroed_values_at(const api::SampleRequest& request, int64_t position) {
  PromptValues values;
  const auto k = static_cast<size_t>(request.topk_prompt_logprobs);
  const auto draws = static_cast<size_t>(request.prompt_draws);
  const auto [first, last] = request.prompt_targets.range_of(position);
  values.topk_ids.resize(k);
  values.topk_logprobs.resize(k);
  values.draw_ids.resize(draws);
  values.draw_logprobs.resize(draws);
  values.target_logprobs.resize(last - first);
  return values;
}

void move_prompt_values(api::SampleResult& from, api::SampleResult& to) {
  to.prompt_logprobs = std::move(from.prompt_logprobs);
  to.topk_ids = std::move(from.topk_ids);
  to.topk_logprobs = std::move(from.topk_logprobs);
  to.prompt_target_logprobs = std::move(from.prompt_target_logprobs);
  to.prompt_draw_ids = std::move(from.prompt_draw_ids);
  to.prompt_draw_logprobs = std::move(from.prompt_draw_logprobs);
}

// Calls body(those of all positions, where this one's begin, its own) for each list of values.
template <typename All, typename One, typename Body>
void for_each_value_list(const api::SampleRequest& request, int64_t position, All& all, One& one,
                         Body body) {
  const auto at = static_cast<size_t>(position);
  const size_t of_top = at * static_cast<size_t>(request.topk_prompt_logprobs);
  const size_t of_draws = (at - 1) * static_cast<size_t>(request.prompt_draws);
  body(all.topk_ids, of_top, one.topk_ids);
  body(all.topk_logprobs, of_top, one.topk_logprobs);
  body(all.prompt_draw_ids, of_draws, one.draw_ids);
  body(all.prompt_draw_logprobs, of_draws, one.draw_logprobs);
  body(all.prompt_target_logprobs, request.prompt_targets.range_of(position).first,
       one.target_logprobs);
}

}  // namespace

RowBook::~RowBook() {
  for (auto& [id, row] : rows_) release(row.pages, row.state);
  for (auto& [id, group] : groups_) release(group.pages, group.state);
}

void RowBook::release(std::vector<void*>& pages, void*& state) {
  if (state != nullptr) engine_.state_pool().give_back(std::exchange(state, nullptr));
  for (void* page : pages) {
    if (page != nullptr) engine_.kv_pool().give_back(page);
  }
  pages.clear();
}

size_t RowBook::open_group(std::shared_ptr<const api::SampleRequest> of,
                           std::shared_ptr<model::LoraAdapter> adapter, uint64_t owner,
                           std::shared_ptr<SampleAnswer> answer) {
  const api::SampleRequest& request = *of;
  engine_.check(request, next_id_);
  SampleGroup group;
  group.request = std::move(of);
  group.owner = owner;
  group.answer = std::move(answer);
  for (const api::LogitBias& bias : request.logit_bias)
    group.bias.push_back({.token = bias.token, .add = bias.add});
  group.penalties = {.repetition = request.repetition_penalty,
                     .frequency = request.frequency_penalty,
                     .presence = request.presence_penalty};
  if (request.repetition_penalty != 1.0f) group.penalised = distinct_tokens(request.prompt);
  group.adapter = adapter == nullptr ? engine_.slot_adapter(request.slot) : adapter.get();
  group.keep = std::move(adapter);
  group.prompt = zeroed_prompt_values(request);
  groups_[next_group_] = std::move(group);
  return next_group_++;
}

PromptRole RowBook::begin_prompt(SampleGroup& group) {
  if (group.phase != GroupPhase::kUnread) return PromptRole::kWaits;
  group.phase = GroupPhase::kReading;
  return PromptRole::kLeads;
}

size_t RowBook::add_row(size_t group_id, uint64_t seed) {
  SampleGroup& group = groups_.at(group_id);
  CHECK(!group.closed, group_id);
  SampleRow row;
  row.group = group_id;
  row.seed = seed;
  row.first = group.num_added++ == 0;
  row.prompt = begin_prompt(group);
  ++group.num_rows;
  ++group.num_resident;
  rows_[next_id_] = std::move(row);
  active_.push_back(next_id_);
  return next_id_++;
}

void RowBook::set_sample(size_t id, int64_t index, std::unique_ptr<StopText> stop) {
  SampleRow& row = rows_.at(id);
  row.index = index;
  row.shares_prompt = index > 0;
  row.stop = std::move(stop);
}

void RowBook::set_matcher(size_t id, structured::Matcher matcher) {
  CHECK(matcher.vocab_size() == engine_.config().vocab_size, matcher.vocab_size());
  rows_.at(id).matcher = std::make_unique<structured::Matcher>(std::move(matcher));
}

void RowBook::close_group(size_t group) {
  groups_.at(group).closed = true;
  release_idle_group(group);
}

// Pages of the prompt are kept for rows that join it, for the first time or again.
void RowBook::release_idle_group(size_t id) {
  SampleGroup& group = groups_.at(id);
  if (group.holds_prompt()) return;
  release(group.pages, group.state);
  group.phase = GroupPhase::kUnread;
  if (group.num_rows == 0) groups_.erase(id);
}

// The row has nothing in the cache any more. If it was to read the prompt, another one is.
void RowBook::evict(size_t id, RowPhase phase) {
  SampleRow& row = rows_.at(id);
  SampleGroup& group = group_of(row);
  cache_prefix(row);
  release(row.pages, row.state);
  std::erase(active_, id);
  if (row.resident()) --group.num_resident;
  row.phase = phase;
  row.position = row.num_read = row.border = 0;
  row.drafts.clear();
  row.ahead.clear();  // its tokens are read again, and it is sampled again
  const bool leads = row.leads();
  row.prompt = PromptRole::kWaits;
  if (leads && group.phase != GroupPhase::kCached) reassign_prompt_leader(row);
  release_idle_group(row.group);
}

// Others of the group wait for the prompt that the row was to read: the first of them that runs
// reads it in its place, from its begin. Where none runs now, the next that resumes or joins does,
// since nobody has begun.
void RowBook::reassign_prompt_leader(SampleRow& row) {
  SampleGroup& group = group_of(row);
  group.phase = GroupPhase::kUnread;
  for (const size_t other : active_) {
    if (rows_.at(other).group != row.group) continue;
    rows_.at(other).prompt = begin_prompt(group);
    return;
  }
}

void RowBook::finish(size_t id) { evict(id, RowPhase::kFinished); }

bool RowBook::preempt_row(size_t id, bool keep) {
  SampleRow& row = rows_.at(id);
  CHECK(row.phase == RowPhase::kRunning, id);
  row.preempt_order = ++num_preemptions_;
  const SampleGroup& group = group_of(row);
  const bool is_awaited =
      row.leads() && group.phase != GroupPhase::kCached && (group.num_rows > 1 || !group.closed);
  if (!keep || is_awaited || row.pages.empty()) {
    evict(id, RowPhase::kEvicted);
    return false;
  }
  row.phase = RowPhase::kParked;
  std::erase(active_, id);
  return true;
}

void RowBook::give_up_pages(size_t id) {
  CHECK(rows_.at(id).aside(), id);
  evict(id, RowPhase::kEvicted);
}

void RowBook::resume(size_t id, int64_t runs_until) {
  SampleRow& row = rows_.at(id);
  CHECK(row.aside(), id);
  row.runs_until = runs_until;
  if (!row.resident()) {
    SampleGroup& group = group_of(row);
    row.shares_prompt = group.answer != nullptr && group.answer->sample().num_samples > 1;
    ++group.num_resident;
    row.prompt = begin_prompt(group);
  }
  row.phase = RowPhase::kRunning;
  active_.insert(std::lower_bound(active_.begin(), active_.end(), id), id);
}

ops::TokenChoice RowBook::choice_of(const SampleRow& row) const {
  const SampleGroup& group = group_of(row);
  const api::SampleRequest& request = *group.request;
  return {.params = {.temperature = request.temperature,
                     .top_k = request.top_k,
                     .top_p = request.top_p,
                     .min_p = request.min_p,
                     .seed = row.seed},
          .changes = group.bias,
          .penalties = group.penalties,
          .before = {.prompt = group.penalised, .answer = row.counts},
          .scaled_logprobs = request.scaled_logprobs};
}

PromptValues RowBook::prompt_values(size_t row, int64_t position) const {
  const SampleGroup& group = group_of(rows_.at(row));
  const api::SampleRequest& request = *group.request;
  PromptValues values = zeroed_values_at(request, position);
  for_each_value_list(
      request, position, group.prompt, values, [](const auto& all, size_t begin, auto& own) {
        std::copy_n(all.begin() + static_cast<std::ptrdiff_t>(begin), own.size(), own.begin());
      });
  if (request.wants_prompt_logprobs())
    values.logprob = group.prompt.prompt_logprobs[static_cast<size_t>(position)];
  return values;
}

void RowBook::set_prompt_values(size_t row, int64_t position, const PromptValues& values) {
  SampleGroup& group = group_of(rows_.at(row));
  const api::SampleRequest& request = *group.request;
  for_each_value_list(request, position, group.prompt, values,
                      [](auto& all, size_t begin, const auto& own) {
                        std::ranges::copy(own, all.begin() + static_cast<std::ptrdiff_t>(begin));
                      });
  if (request.wants_prompt_logprobs())
    group.prompt.prompt_logprobs[static_cast<size_t>(position)] = values.logprob;
}

api::SampleResult RowBook::take_result(size_t id) {
  SampleRow& row = rows_.at(id);
  CHECK(row.finished(), id);
  SampleGroup& group = group_of(row);
  api::SampleResult result = std::move(row.result);
  const std::string error = std::move(row.error);
  if (row.first) {
    group.has_values = true;
    move_prompt_values(group.prompt, result);
  }
  const size_t group_id = row.group;
  --group.num_rows;
  rows_.erase(id);
  release_idle_group(group_id);
  if (!error.empty()) throw Error(ErrorCode::kInvalidArgument, error);
  return result;
}

int64_t RowBook::num_waiting() const {
  return std::count_if(active_.begin(), active_.end(),
                       [this](size_t id) { return !groups_.at(rows_.at(id).group).has_weights; });
}

void RowBook::give_weights(size_t id, std::shared_ptr<model::LoraAdapter> adapter) {
  SampleGroup& group = groups_.at(id);
  CHECK(!group.has_weights, id);
  group.adapter = adapter.get();
  group.keep = std::move(adapter);
  group.has_weights = true;
}

bool RowBook::try_prepare_to_read(size_t id) {
  SampleRow& row = rows_.at(id);
  if (!group_of(row).has_weights) return false;
  if (row.prompt == PromptRole::kLeads) {
    row.prompt = PromptRole::kLeadsOnwards;
    reuse_prefix(row);
  }
  if (row.prompt != PromptRole::kWaits) return true;
  if (group_of(row).phase != GroupPhase::kCached) return false;
  attach_prompt_pages(row);
  return true;
}

// Positions of the prompt that a further row need not read: its last token must be, for its logits.
int64_t RowBook::shared_positions(const SampleGroup& group) const {
  return engine_.cache_layout().last_shared(group.prompt_size() - 1);
}

// The row begins where it no longer shares the prompt: it has the full pages before, a copy of the
// page that it will write to, and a copy of the state there.
void RowBook::attach_prompt_pages(SampleRow& row) {
  SampleGroup& group = group_of(row);
  KvPool& pool = engine_.kv_pool();
  row.position = shared_positions(group);
  if (group.state != nullptr) row.state = take_slab_copy(engine_.state_pool(), group.state);
  const int64_t shared = row.position / pool.page_size();
  for (int64_t p = 0; p < shared; ++p) {
    void* page = group.pages[static_cast<size_t>(p)];
    if (page != nullptr) pool.share(page);
    row.pages.push_back(page);
  }
  if (row.position % pool.page_size() != 0)
    row.pages.push_back(take_slab_copy(pool, group.pages[static_cast<size_t>(shared)]));
  row.num_read = row.position;
  row.prompt = PromptRole::kJoined;
}

int64_t RowBook::next_prompt_chunk(size_t id) {
  SampleRow& row = rows_.at(id);
  SampleGroup& group = group_of(row);
  const int64_t prompt = group.prompt_size();
  const int64_t border = shared_positions(group);
  const bool has_state = engine_.cache_layout().state_bytes() > 0;
  if (!has_state || !row.leads() || border == 0) return prompt;
  if (!shares(group) && !uses_prefixes(group)) return prompt;
  // The state is that of what was read, so it can be copied only while it stands at the border:
  // a piece ends there, and behind the pass that reads it, before the next piece, the state is
  // kept: here for the group's rows, by commit_read() for other requests. Who was set aside and
  // reads the prompt again finds the group's copy.
  if (row.position < border) return border;
  if (row.position == border && shares(group) && group.state == nullptr)
    group.state = take_slab_copy(engine_.state_pool(), row.state);
  return prompt;
}

void RowBook::allocate_pages_and_state(size_t id, int64_t end) {
  SampleRow& row = rows_.at(id);
  KvPool& pool = engine_.kv_pool();
  while (static_cast<int64_t>(row.pages.size()) < pool.pages_for(end))
    row.pages.push_back(take_slab(pool));
  if (row.state == nullptr && engine_.cache_layout().state_bytes() > 0)
    row.state = take_slab(engine_.state_pool());
}

void RowBook::give_back_before_window(size_t id) {
  SampleRow& row = rows_.at(id);
  KvPool& pool = engine_.kv_pool();
  const int64_t needed = engine_.cache_layout().first_needed(row.position) / pool.page_size();
  for (int64_t p = 0; p < needed; ++p) {
    void*& page = row.pages[static_cast<size_t>(p)];
    if (page != nullptr) pool.give_back(std::exchange(page, nullptr));
  }
}

void RowBook::publish_prompt(size_t id) {
  SampleRow& row = rows_.at(id);
  SampleGroup& group = group_of(row);
  KvPool& pool = engine_.kv_pool();
  group.phase = GroupPhase::kCached;
  if (!shares(group)) return;
  group.pages.assign(row.pages.begin(), row.pages.begin() + pool.pages_for(group.prompt_size()));
  for (void* page : group.pages) {
    if (page != nullptr) pool.share(page);
  }
}

void RowBook::advance(size_t id, int64_t end, int64_t step) {
  SampleRow& row = rows_.at(id);
  row.last_step = step;
  row.position = end;
}

bool RowBook::add_token(size_t id, const ChosenToken& token) {
  SampleRow& row = rows_.at(id);
  const SampleGroup& group = group_of(row);
  const api::SampleRequest& request = *group.request;
  api::SampleResult& result = row.result;
  if (!try_match(row, token.token)) return true;
  if (!group.penalties.none()) ops::increment_token_count(row.counts, token.token);
  result.tokens.push_back(token.token);
  result.logprobs.push_back(token.logprob);
  result.sample_topk_ids.insert(result.sample_topk_ids.end(), token.topk_ids.begin(),
                                token.topk_ids.end());
  result.sample_topk_logprobs.insert(result.sample_topk_logprobs.end(), token.topk_logprobs.begin(),
                                     token.topk_logprobs.end());
  result.stopped =
      std::find(request.stop.begin(), request.stop.end(), token.token) != request.stop.end() ||
      (row.matcher != nullptr && row.matcher->is_ended());
  return result.stopped || std::ssize(result.tokens) >= request.max_tokens;
}

ChosenToken RowBook::pop_token_ahead(size_t id) {
  std::vector<ChosenToken>& ahead = rows_.at(id).ahead;
  ChosenToken first = std::move(ahead.front());
  ahead.erase(ahead.begin());
  return first;
}

// What is known of prefixes goes before a row lacks anything.
void RowBook::make_space(const SlabPool& pool) {
  while (prefixes_ != nullptr && pool.is_full() && prefixes_->give_back_oldest()) {
  }
}

void* RowBook::take_slab(SlabPool& pool) {
  make_space(pool);
  return pool.take();
}

void* RowBook::take_slab_copy(SlabPool& pool, const void* slab) {
  make_space(pool);
  return pool.take_copy(slab);
}

// The prompt's last page border is where others join it, so no row begins behind that; nor behind a
// position of which the prompt's values still need the logits.
void RowBook::reuse_prefix(SampleRow& row) {
  SampleGroup& group = group_of(row);
  if (!uses_prefixes(group) || row.position > 0) return;
  int64_t most = shared_positions(group);
  if (group.wants_prompt() && !group.has_values)
    most = std::min(most, api::CachePages::max_reusable_positions(*group.request));
  PrefixCache::Found found = prefixes_->acquire(owner_of(group), group.request->prompt, most);
  row.pages = std::move(found.pages);
  row.state = found.state;
  row.position = row.num_read = found.positions;
  if (group.num_found) return;
  group.num_found = found.positions;
  prefix_counts_.prompt_tokens += group.prompt_size();
  prefix_counts_.found_tokens += found.positions;
}

// The first tokens of the prompt and what the row has sampled, until the next call.
std::span<const int32_t> RowBook::first_tokens(const SampleRow& row, int64_t count) {
  const std::vector<int32_t>& prompt = group_of(row).request->prompt;
  const int64_t of_prompt = std::min(count, std::ssize(prompt));
  tokens_.assign(prompt.begin(), prompt.begin() + of_prompt);
  tokens_.insert(tokens_.end(), row.result.tokens.begin(),
                 row.result.tokens.begin() + (count - of_prompt));
  return tokens_;
}

// Layouts without a state alone: a state is kept where it is at a border.
void RowBook::cache_prefix(const SampleRow& row) {
  const SampleGroup& group = group_of(row);
  const bool has_state = engine_.cache_layout().state_bytes() > 0;
  if (has_state || !uses_prefixes(group) || !row.error.empty()) return;
  prefixes_->insert(owner_of(group), first_tokens(row, row.num_read), row.pages);
}

// That of the prompt stays; of the sample's only the last is worth its space.
void RowBook::cache_state(SampleRow& row) {
  const SampleGroup& group = group_of(row);
  const PrefixOwner owner = owner_of(group);
  const bool inserted =
      prefixes_->insert_with_state(owner, first_tokens(row, row.num_read), row.pages, row.state);
  if (row.num_read < group.prompt_size()) return;
  if (row.border > 0) prefixes_->drop_state(owner, first_tokens(row, row.border));
  row.border = inserted ? row.num_read : 0;
}

void RowBook::commit_read(size_t id, bool ends_prompt) {
  SampleRow& row = rows_.at(id);
  const SampleGroup& group = group_of(row);
  row.num_read = row.position;
  if (!uses_prefixes(group)) return;
  const model::CacheLayout& layout = engine_.cache_layout();
  if (layout.state_bytes() == 0) {
    if (ends_prompt) cache_prefix(row);
    return;
  }
  if (row.num_read == 0 || row.num_read % layout.page_size() != 0) return;
  if (row.num_read == shared_positions(group) || row.num_read >= group.prompt_size())
    cache_state(row);
}

}  // namespace strata::engine
