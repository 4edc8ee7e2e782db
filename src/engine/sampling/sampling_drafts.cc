// SPDX-License-Identifier: Apache-2.0
#include "engine/sampling/sampling_drafts.h"

#include <algorithm>
#include <optional>

#include "engine/sampling/undo_log.h"
#include "model/mtp.h"
#include "ops/choose_tokens.h"
#include "ops/elementwise.h"

namespace strata::engine {
namespace {

// The row's token at a position, of its prompt, sampled or in advance; none where it is not known.
std::optional<int32_t> known_token(const SampleGroup& group, const SampleRow& row,
                                   int64_t position) {
  const int64_t own = position - group.prompt_size(), num_sampled = row.num_sampled();
  if (own < 0) return group.request->prompt[static_cast<size_t>(position)];
  if (own < num_sampled) return row.result.tokens[static_cast<size_t>(own)];
  if (own < num_sampled + std::ssize(row.ahead))
    return row.ahead[static_cast<size_t>(own - num_sampled)].token;
  return std::nullopt;
}

}  // namespace

void SamplingDrafts::save_draft_rows(Backend& backend) {
  for (const StepSlice& slice : step_.slices()) {
    if (slice.num_drafts == 0) continue;
    const SampleRow& row = book_.row(slice.id);
    save_undo_rows(backend, engine_.cache_layout(), row.state, row.position - slice.num_drafts,
                   row.position);
  }
}

// What is sampled behind drafts counts where these are the tokens that were sampled before it.
void SamplingDrafts::verify_draft(SampleChoice& choice) {
  const SampleRow& row = book_.row(choice.id);
  // One that stands behind a rejected draft was given a prefix that the row does not have: else one
  // token fewer is in advance than there are drafts before it, since the step's first is no
  // draft's.
  if (row.finished() || row.ahead.size() + 1 != choice.num_drafts) return;
  if (!row.ahead.empty() && !row.ahead.back().error.empty()) return;
  const int32_t before = row.ahead.empty() ? row.result.tokens.back() : row.ahead.back().token;
  if (row.drafts[choice.num_drafts - 1] != before) return;
  ++counts_.accepted;
  book_.add_ahead(choice.id, take_chosen(choice));
}

// Puts rings back, and the row before its first rejected draft; returns how many rows of the slice
// are to be gone through again for what else is in its state.
int64_t SamplingDrafts::rewind_rejected(Backend& backend, const StepSlice& slice) {
  const SampleRow& row = book_.row(slice.id);
  if (row.finished()) return 0;
  // Every accepted draft gave one token in advance, and the first rejected one ends them.
  const int64_t rejected = slice.num_drafts - std::ssize(row.ahead);
  restore_undo_rows(backend, engine_.cache_layout(), row.state, row.position - rejected,
                    row.position);
  book_.rewind(slice.id, rejected);
  return rejected == 0 ? 0 : slice.end - slice.begin - rejected;
}

// Rows stand before the first draft that was rejected, as if it had not been read.
void SamplingDrafts::roll_back_rejected(model::Pass& pass) {
  builder_.clear();
  for (size_t s = 0; s < step_.slices().size(); ++s) {
    const StepSlice& slice = step_.slices()[s];
    if (slice.num_drafts == 0) continue;
    int64_t rows = slice.end - slice.begin;  // a plan's
    pass.unless_counting([&] { rows = rewind_rejected(pass.backend, slice); });
    if (rows == 0) continue;
    const model::PassSequence& sequence = pass.sequences[s];
    builder_.append(
        pass.tokens.subspan(static_cast<size_t>(slice.begin), static_cast<size_t>(rows)),
        sequence.first_position, sequence.adapter, sequence.kept);
  }
  if (!engine_.cache_layout().replays() || builder_.num_tokens() == 0) return;
  model::Pass replayed = builder_.build_like(pass);
  model::replay_states(replayed);
}

void SamplingDrafts::draft(model::Pass& pass, TensorView layers) {
  const TraceSpan span = model::traced(pass, "drafts", "rows", std::ssize(step_.slices()));
  collect_known_rows(pass);
  if (rows_.empty()) return;
  if (engine_.options().draft_tokens == 1) return propose_drafts(pass, layers, {});
  const Scratch::Mark mark(pass.backend.scratch());
  const TensorView states = pass.take(pass.dtype(), {std::ssize(slices_), layers.cols()});
  propose_drafts(pass, layers, states);
  draft_further(pass, states);
}

// The layer reads its own drafts behind the tokens that are known, and its own states, of each
// slice's last row; what that leaves in the cache is taken back.
void SamplingDrafts::draft_further(model::Pass& pass, TensorView states) {
  const int64_t count = engine_.options().draft_tokens - 1;
  std::vector<const SampleRow*> kept;
  for (int64_t i = 1; i <= count; ++i) {
    list_drafted_rows(pass, i);
    if (rows_.empty()) break;
    // All of them are kept at once, before the first is overwritten.
    if (i == 1) kept = save_listed_rows(pass, count);
    propose_drafts(pass, states, states.slice_rows(0, std::ssize(slices_)));
  }
  // Rows that got fewer drafts too: what was not overwritten is put back as it was.
  for (const SampleRow* row : kept) {
    restore_undo_rows(pass.backend, pass.cache, row->state, row->position, row->position + count);
  }
}

// Saves what `count` further drafts overwrite of the rows that are listed.
std::vector<const SampleRow*> SamplingDrafts::save_listed_rows(model::Pass& pass, int64_t count) {
  std::vector<const SampleRow*> kept;
  for (const size_t s : slices_) {
    const SampleRow* row = kept.emplace_back(&book_.row(step_.slices()[s].id));
    save_undo_rows(pass.backend, pass.cache, row->state, row->position, row->position + count);
  }
  return kept;
}

// The layer reads every row of the pass whose next token is known by now, which leaves its keys in
// the cache; of a rejected draft's row there is none, and a row that is done needs none.
void SamplingDrafts::collect_known_rows(const model::Pass& pass) {
  builder_.clear();
  rows_.clear();
  slices_.clear();
  for (size_t s = 0; s < step_.slices().size(); ++s) {
    const StepSlice& slice = step_.slices()[s];
    const SampleRow& row = book_.row(slice.id);
    if (row.finished()) continue;
    const bool is_run = pass.unless_counting([&] { book_.clear_drafts(slice.id); });
    const model::PassSequence& sequence = pass.sequences[s];
    const SampleGroup& group = book_.group_of(row);
    next_tokens_.clear();
    for (int64_t i = 0; i < slice.end - slice.begin; ++i) {
      const std::optional<int32_t> next = known_token(group, row, sequence.first_position + i + 1);
      if (!next && is_run) break;
      next_tokens_.push_back(next.value_or(0));  // a plan's
      rows_.push_back(static_cast<int32_t>(slice.begin + i));
    }
    slices_.push_back(s);
    builder_.append(next_tokens_, sequence.first_position, sequence.adapter, sequence.kept);
  }
}

// Lists those of the slices drafted last that have so many drafts and want more.
void SamplingDrafts::list_drafted_rows(const model::Pass& pass, int64_t num_drafts) {
  builder_.clear();
  rows_.clear();
  size_t num_slices = 0;  // that go on
  for (size_t i = 0; i < slices_.size(); ++i) {
    const size_t s = slices_[i];
    const StepSlice& slice = step_.slices()[s];
    const SampleRow& row = book_.row(slice.id);
    bool goes_on = true;  // a plan's, and its token
    int32_t token = 0;
    pass.unless_counting([&] {
      goes_on = std::ssize(row.drafts) == num_drafts && num_drafts < step_.most_drafts(row);
      if (goes_on) token = row.drafts.back();
    });
    if (!slice.samples || !goes_on) continue;
    const model::PassSequence& sequence = pass.sequences[s];
    rows_.push_back(static_cast<int32_t>(i));
    slices_[num_slices++] = s;
    builder_.append({&token, 1}, row.position + num_drafts - 1, sequence.adapter, sequence.kept);
  }
  slices_.resize(num_slices);
}

// The listed rows, of which `from` has the states. Leaves that of each slice's last row in
// `states`, which may be a part of `from` or nothing.
void SamplingDrafts::propose_drafts(model::Pass& pass, TensorView from, TensorView states) {
  model::Pass own = builder_.build_like(pass);
  own.is_mtp = true;
  const Scratch::Mark mark(pass.backend.scratch());
  const auto count = std::ssize(rows_);
  const TensorView state = own.take(own.dtype(), {count, from.cols()});
  const TensorView hidden = own.take(own.dtype(), {count, engine_.config().hidden_size});
  ops::gather(own.backend, from, rows_, state);
  model::mtp_forward(own, tape_, /*wants_backward=*/false, state, hidden);
  choose_drafts(own, hidden);
  if (!states.empty())
    gather_last_states(own, model::mtp_state(engine_.config(), tape_.last, hidden), states);
}

// What the layer made of each slice's last row; of these the listed rows are from now on.
void SamplingDrafts::gather_last_states(const model::Pass& own, TensorView from,
                                        TensorView states) {
  rows_.clear();
  for (const model::PassSequence& sequence : own.sequences) {
    rows_.push_back(static_cast<int32_t>(sequence.end - 1));
  }
  ops::gather(own.backend, from, rows_, states);
}

// The choice of the token behind the row's last draft.
void SamplingDrafts::add_choice(size_t id, int64_t logits_row) {
  const SampleRow& row = book_.row(id);
  SampleChoice& choice = choices_.emplace_back();
  choice.id = id;
  static_cast<ops::TokenChoice&>(choice) = book_.choice_of(row);
  choice.scaled_logprobs = false;
  if (!choice.penalties.none() || row.matcher != nullptr) {
    for (const ChosenToken& ahead : row.ahead) choice.drafts.push_back(ahead.token);
    choice.drafts.insert(choice.drafts.end(), row.drafts.begin(), row.drafts.end());
    choice.before.drafts = choice.drafts;
  }
  choice.row = logits_row;
  choice.step_index = row.result.tokens.size() + row.ahead.size() + row.drafts.size();
}

// The last one of each slice that samples.
void SamplingDrafts::select_last_rows(const model::Pass& own) {
  selected_.assign(rows_.size(), 0);
  for (size_t i = 0; i < slices_.size(); ++i) {
    if (step_.slices()[slices_[i]].samples)
      selected_[static_cast<size_t>(own.sequences[i].end - 1)] = 1;
  }
}

// Lists the choices of a chunk, whose first row is in the listed slice `next` or one behind it;
// then `next` is that of its last row.
void SamplingDrafts::list_choices(const model::Pass& own, std::span<const int32_t> rows,
                                  size_t& next) {
  choices_.clear();
  for (size_t i = 0; i < rows.size(); ++i) {
    while (own.sequences[next].end <= rows[i]) ++next;
    add_choice(step_.slices()[slices_[next]].id, static_cast<int64_t>(i));
  }
  choosing_.clear();
  for (SampleChoice& choice : choices_) choosing_.push_back(&choice);
}

// By the row's own settings and the random numbers of the position, so that a draft is what is
// sampled wherever both distributions agree.
void SamplingDrafts::choose_drafts(model::Pass& own, TensorView hidden) {
  Backend& backend = own.backend;
  select_last_rows(own);
  const int64_t vocab = engine_.config().vocab_size;
  size_t next = 0;  // of the slices
  chunks_.select_rows(own, selected_);
  for (auto rows = chunks_.next_chunk(); !rows.empty(); rows = chunks_.next_chunk()) {
    const Scratch::Mark mark(backend.scratch());
    const auto count = static_cast<int64_t>(rows.size());
    const TensorView x = own.take(own.dtype(), {count, hidden.cols()});
    const TensorView logits = own.take(DType::kF32, {count, vocab});
    ops::gather(backend, hidden, rows, x);
    model::head_forward(own, chunks_.groups(), x, {}, logits);
    list_choices(own, rows, next);
    book_.fill_masks(backend, choices_);
    ops::choose_tokens(backend, logits, {}, choosing_);
    backend.unless_counting([&] {
      for (const SampleChoice& choice : choices_) {
        // No numbers: nothing is taken for the next token.
        if (choice.error.empty()) book_.add_draft(choice.id, choice.token);
      }
    });
  }
}

}  // namespace strata::engine
