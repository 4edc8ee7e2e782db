// SPDX-License-Identifier: Apache-2.0
#include "engine/sampling/step_planner.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace strata::engine {
namespace {

// At least a quarter of a step is for prompts that wait: a full batch must not hold them up.
int64_t least_prompt(int64_t budget) { return (budget + 3) / 4; }

int64_t wanted(const StepClaim& claim) { return claim.decoding + claim.prompt; }
int64_t granted(const StepClaim& claim) { return claim.granted_decoding + claim.granted_prompt; }

// Rows that decode come first, but for what prompts get at least.
void grant(StepClaim& claim, int64_t share) {
  const int64_t for_prompt = std::min(claim.prompt, share < 2 ? 0 : least_prompt(share));
  claim.granted_decoding = std::min(claim.decoding, share - for_prompt);
  claim.granted_prompt = std::min(claim.prompt, share - claim.granted_decoding);
}

// All rows that decode go.
void grant_only_claim(StepClaim& only, int64_t budget) {
  only.granted_decoding = only.decoding;
  only.granted_prompt =
      std::min(only.prompt, std::max(budget - only.decoding, least_prompt(budget)));
}

}  // namespace

void divide_step_tokens(std::span<StepClaim> claims, int64_t budget, uint64_t turn) {
  CHECK(budget >= 1, budget);
  if (claims.empty()) return;
  if (claims.size() == 1) return grant_only_claim(claims[0], budget);
  int64_t left = budget;
  while (left > 0) {
    int64_t unmet = 0;
    for (const StepClaim& claim : claims) unmet += granted(claim) < wanted(claim) ? 1 : 0;
    if (unmet == 0) return;
    const int64_t each = std::max<int64_t>(1, left / unmet);
    for (size_t i = 0; i < claims.size(); ++i) {
      StepClaim& claim = claims[(turn + i) % claims.size()];
      const int64_t more = std::min({each, left, wanted(claim) - granted(claim)});
      if (more <= 0) continue;
      grant(claim, granted(claim) + more);
      left -= more;
    }
  }
}

// Tokens that the row reads next: of its prompt, or of its own after that.
int64_t StepPlanner::next_piece(size_t id, int64_t budget) {
  const SampleRow& row = book_.row(id);
  if (row.position >= book_.group_of(row).prompt_size()) return std::min(book_.unread(row), budget);
  return std::min(book_.next_prompt_chunk(id) - row.position, budget);
}

StepClaim& StepPlanner::ensure_claim(uint64_t owner) {
  auto claim = std::find_if(claims_.begin(), claims_.end(),
                            [&](const StepClaim& c) { return c.owner == owner; });
  if (claim == claims_.end()) claim = claims_.insert(claim, {.owner = owner});
  return *claim;
}

// Which rows have one token to go through the model, the last they know, and which have more to
// read; and what both come to for each owner.
void StepPlanner::classify_rows() {
  decoding_.clear();
  reading_.clear();
  claims_.clear();
  for (const size_t id : book_.active()) {
    const SampleRow& row = book_.row(id);
    if (!row.ahead.empty()) continue;
    const SampleGroup& group = book_.group_of(row);
    if (!book_.try_prepare_to_read(id)) continue;
    StepClaim& claim = ensure_claim(group.owner);
    const bool reads_prompt = row.leads() && row.position < group.prompt_size();
    if (book_.unread(row) == 1 && !reads_prompt) {
      decoding_.push_back(id);
      ++claim.decoding;
    } else {
      reading_.push_back(id);
      claim.prompt += book_.unread(row);
    }
  }
}

void StepPlanner::plan(int64_t step_tokens) {
  builder_.clear();
  slices_.clear();
  ++num_steps_;
  classify_rows();
  int64_t budget = engine_.options().prefill_tokens;
  if (step_tokens > 0) budget = std::min(budget, step_tokens);
  divide_step_tokens(claims_, budget, static_cast<uint64_t>(num_steps_));
  keep_granted_decoding();
  add_decoding_slices(budget);
  add_reading_slices();
}

StepClaim& StepPlanner::claim_of(size_t id) {
  const uint64_t owner = book_.group_of(book_.row(id)).owner;
  return *std::find_if(claims_.begin(), claims_.end(),
                       [&](const StepClaim& c) { return c.owner == owner; });
}

// What each owner is granted goes to those of its rows that have waited longest for a token.
void StepPlanner::keep_granted_decoding() {
  std::stable_sort(decoding_.begin(), decoding_.end(), [this](size_t a, size_t b) {
    return book_.row(a).last_step < book_.row(b).last_step;
  });
  std::erase_if(decoding_, [&](size_t id) { return claim_of(id).granted_decoding-- <= 0; });
}

// Neighbours of one adapter share a run, and a run is one product. All ranks have made their parts
// of adapters in one order, which their ids tell and their addresses do not.
void StepPlanner::sort_decoding_by_adapter() {
  std::sort(decoding_.begin(), decoding_.end(), [this](size_t a, size_t b) {
    const auto adapter = [this](size_t id) {
      const model::LoraAdapter* own = book_.group_of(book_.row(id)).adapter;
      return own == nullptr ? int64_t{-1} : own->id();
    };
    return std::pair(adapter(a), a) < std::pair(adapter(b), b);
  });
}

void StepPlanner::add_decoding_slices(int64_t budget) {
  sort_decoding_by_adapter();
  // Drafts are further tokens of the step, as many of each row as it has budget for.
  const int64_t budget_for_drafts = budget / std::max<int64_t>(1, std::ssize(decoding_)) - 1;
  for (const size_t id : decoding_) {
    const int64_t drafts = std::min(budget_for_drafts, drafts_to_read(book_.row(id)));
    schedule_slice(id, 1 + std::max<int64_t>(0, drafts));
  }
}

// What each owner is granted goes to its prompts in order of id.
void StepPlanner::add_reading_slices() {
  for (const size_t id : reading_) {
    int64_t& left = claim_of(id).granted_prompt;
    if (left <= 0) continue;
    const int64_t count = next_piece(id, left);
    schedule_slice(id, count);
    left -= count;
  }
}

// Positions up to which the layer reads its own drafts where `end` is read and more is sampled.
int64_t StepPlanner::reach_of_drafts(const SampleRow& row, int64_t end) const {
  const SampleGroup& group = book_.group_of(row);
  const int64_t further = std::max<int64_t>(0, engine_.options().draft_tokens - 1);
  return std::min(end + further, group.prompt_size() + group.request->max_tokens);
}

// Not for the last token that is asked for: nothing is sampled behind it.
int64_t StepPlanner::most_drafts(const SampleRow& row) const {
  const int64_t left = book_.group_of(row).request->max_tokens - row.num_sampled() - 1;
  return std::min(engine_.options().draft_tokens, left - std::ssize(row.ahead));
}

int64_t StepPlanner::drafts_to_read(const SampleRow& row) const {
  // Behind the last token that is known, which is the next one that is read.
  const int64_t most = engine_.cache_layout().most_drafts_from(row.position + 1);
  return std::min({std::ssize(row.drafts), most_drafts(row), most});
}

// The next ones that the row reads, of its prompt, or of its own and the first of its drafts.
void StepPlanner::add_tokens(const SampleRow& row, int64_t count, int64_t num_drafts) {
  const SampleGroup& group = book_.group_of(row);
  const model::SequenceCache kept = {
      .pages = row.pages, .state = row.state, .reads_drafts = num_drafts > 0};
  if (row.position < group.prompt_size()) {
    const auto prompt = std::span(group.request->prompt);
    builder_.append(prompt.subspan(static_cast<size_t>(row.position), static_cast<size_t>(count)),
                    row.position, group.adapter, kept);
    return;
  }
  next_tokens_.assign(row.result.tokens.begin() + (row.position - group.prompt_size()),
                      row.result.tokens.end());
  next_tokens_.insert(next_tokens_.end(), row.drafts.begin(), row.drafts.begin() + num_drafts);
  builder_.append(std::span(next_tokens_).first(static_cast<size_t>(count)), row.position,
                  group.adapter, kept);
}

// A slice of more tokens than the row has reads its drafts behind them.
void StepPlanner::schedule_slice(size_t id, int64_t count) {
  const SampleRow& row = book_.row(id);
  const SampleGroup& group = book_.group_of(row);
  const int64_t end = row.position + count;
  const bool samples = count >= book_.unread(row);
  const int64_t reach = samples ? reach_of_drafts(row, end) : end;
  book_.give_back_before_window(id);
  book_.allocate_pages_and_state(id, reach);
  builder_.reach(reach);
  const int64_t begin_row = builder_.num_tokens();
  const int64_t num_drafts = std::max<int64_t>(0, count - book_.unread(row));
  const bool ends_prompt = end == group.prompt_size() && row.leads();
  add_tokens(row, count, num_drafts);
  if (ends_prompt && row.position < end) book_.publish_prompt(id);
  slices_.push_back({.id = id,
                     .begin = begin_row,
                     .end = begin_row + count,
                     .samples = samples,
                     .num_drafts = num_drafts,
                     .first_index = row.result.tokens.size(),
                     .ends_prompt = ends_prompt});
  book_.advance(id, end, num_steps_);
}

}  // namespace strata::engine
