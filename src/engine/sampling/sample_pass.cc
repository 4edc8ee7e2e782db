// SPDX-License-Identifier: Apache-2.0
#include "engine/sampling/sample_pass.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "model/mtp.h"
#include "ops/choose_tokens.h"
#include "ops/elementwise.h"
#include "ops/log_softmax.h"

namespace strata::engine {
namespace {

// Whether anything is asked of the distribution of the prompt's token at `position`.
bool wants_values(const api::SampleRequest& request, int64_t position) {
  if (request.prompt_draws > 0) return true;
  if (request.wants_prompt_logprobs() && position >= request.first_prompt_logprob) return true;
  const auto [first, last] = request.prompt_targets.range_of(position);
  return first < last;
}

}  // namespace

SamplePass::SamplePass(Runner& runner, PassWorkspace& workspace, RowBook& book, StepPlanner& step)
    : runner_(runner), engine_(runner.engine()), workspace_(workspace), book_(book), step_(step) {
  // A row has pages of one stage, and drafts are made where their states are.
  CHECK(runner.stages().size() == 1 && (!shares() || engine_.options().draft_tokens == 0));
  if (engine_.options().draft_tokens > 0) drafts_.emplace(engine_, book, step, draft_counts_);
}

// Whether it stays the same. What a pass takes depends on each slice's rows, adapter and reads.
bool SamplePass::update_signature() {
  signature_.swap(last_signature_);
  signature_.clear();
  for (const StepSlice& slice : step_.slices()) {
    const SampleRow& row = book_.row(slice.id);
    const SampleGroup& group = book_.group_of(row);
    const auto read = std::count(selected_.begin() + slice.begin, selected_.begin() + slice.end, 1);
    const ops::TokenChoice choice = book_.choice_of(row);
    const bool is_changed = choice.is_changed() || row.matcher != nullptr || row.shares_masks;
    const int kind = (choice.is_scaled() ? 1 : 0) + (is_changed ? 2 : 0);
    signature_.insert(signature_.end(), {slice.end - slice.begin, read,
                                         group.adapter == nullptr ? 0 : group.adapter->id(),
                                         slice.samples ? 1 + kind : 0});
  }
  return signature_ == last_signature_ && !signature_.empty();
}

std::span<const SampledToken> SamplePass::run() {
  sampled_.clear();
  append_tokens_ahead();
  CHECK(!step_.slices().empty() || !sampled_.empty());  // the budget is at least one token
  if (!step_.slices().empty()) {
    select_head_rows();
    if (!update_signature())
      plan_ = workspace_.measure([this](Backend& counter) { run_pass(counter); });
    workspace_.book(plan_);
    run_pass(workspace_.backend());
  }
  for (const StepSlice& slice : step_.slices()) {
    if (drafts_) drafts_->count(slice);
    if (slice.ends_prompt) book_.complete_values(slice.id);
  }
  std::sort(sampled_.begin(), sampled_.end(),
            [](const auto& a, const auto& b) { return a.id < b.id; });
  return sampled_;
}

// Rows that have a part in the pass have nothing in advance.
void SamplePass::append_tokens_ahead() {
  const std::vector<size_t> active(book_.active().begin(), book_.active().end());
  for (const size_t id : active) {
    if (!book_.row(id).ahead.empty()) append_sampled_token(id, book_.pop_token_ahead(id));
  }
}

void SamplePass::run_pass(Backend& backend) {
  const Scratch::Mark mark(backend.scratch());
  model::Pass pass = step_.builder().build(backend, *engine_.model().weights, workspace_.ropes(),
                                           engine_.cache_layout());
  const TensorView hidden = run_layers(pass);
  backend.unless_counting([&] { share_masks(backend); });
  {
    const TraceSpan span = model::traced(pass, "choose tokens", "rows", std::ssize(step_.slices()));
    choose_next_tokens(pass, hidden);
  }
  if (!drafts_) return;
  drafts_->roll_back_rejected(pass);
  drafts_->draft(pass, model::mtp_state(engine_.config(), tape_.last, hidden));
}

// In the scratch: what crosses the stage's borders, and returned, [T, D], what the head reads,
// where the stage has one.
TensorView SamplePass::take_borders_and_hidden(model::Pass& pass) {
  const model::ModelWeights& weights = pass.weights;
  Scratch& scratch = pass.backend.scratch();
  const Shape border = {pass.num_tokens(), model::border_width(engine_.config())};
  const auto space = [&](bool is_there) {
    return is_there ? scratch.take(pass.dtype(), border, model::kLayerInputTag) : TensorView();
  };
  TensorView hidden;
  if (weights.ends()) {
    hidden = scratch.take(pass.dtype(), {pass.num_tokens(), engine_.config().hidden_size},
                          "final_hidden");
  }
  tape_.first = space(!weights.begins());
  tape_.last_memory = space(!weights.ends());
  return hidden;
}

// Runs the layers of this stage; returns what the head reads.
TensorView SamplePass::run_layers(model::Pass& pass) {
  const TensorView hidden = take_borders_and_hidden(pass);
  const TraceSpan span = model::traced(pass, "forward", "tokens", pass.num_tokens());
  if (drafts_) drafts_->save_draft_rows(pass.backend);
  pass.unless_counting([&] { runner_.receive_state(tape_.first); });
  model::decoder_forward(pass, tape_, /*wants_backward=*/false, {}, hidden);
  pass.unless_counting([&] {
    runner_.send_state(tape_.last_memory);
    for (const StepSlice& slice : step_.slices()) book_.commit_read(slice.id, slice.ends_prompt);
  });
  return hidden;
}

// The head runs on the rows that someone reads: the last row of a slice that samples, and prompt
// rows whose logprobs are wanted.
void SamplePass::select_head_rows() {
  selected_.assign(static_cast<size_t>(step_.builder().num_tokens()), 0);
  for (const StepSlice& slice : step_.slices()) {
    if (slice.samples) {
      std::fill(selected_.begin() + (slice.end - 1 - slice.num_drafts),
                selected_.begin() + slice.end, 1);
    }
    if (records_prompt(book_.row(slice.id))) select_prompt_rows(slice);
  }
}

void SamplePass::select_prompt_rows(const StepSlice& slice) {
  const SampleRow& row = book_.row(slice.id);
  const SampleGroup& group = book_.group_of(row);
  for (int64_t i = slice.begin; i < slice.end; ++i) {
    const int64_t next = row.position - (slice.end - i) + 1;
    if (next < group.prompt_size() && wants_values(*group.request, next))
      selected_[static_cast<size_t>(i)] = 1;
  }
}

// The logits of these rows, where the stage has a head.
SamplePass::LogitsRow SamplePass::run_head(model::Pass& pass, std::span<const int32_t> rows,
                                           TensorView hidden) {
  if (!has_logits()) return {};
  Scratch& scratch = pass.backend.scratch();
  const TensorView x = scratch.take(pass.dtype(), {std::ssize(rows), hidden.cols()});
  const TensorView logits =
      scratch.take(DType::kF32, {std::ssize(rows), engine_.config().vocab_size});
  const TensorView lse = scratch.take(DType::kF32, {std::ssize(rows), 2});
  ops::gather(pass.backend, hidden, rows, x);
  model::head_forward(pass, chunks_.groups(), x, {}, logits);
  ops::logsumexp(pass.backend, logits, lse);
  return {logits, lse, 0};
}

// Where the first process alone has the matchers of rows, it makes their masks, while the stages
// behind its own run their layers, for those that have the logits.
void SamplePass::share_masks(Backend& backend) {
  shared_masks_.clear();
  const size_t num_words = structured::num_mask_words(engine_.config().vocab_size);
  for (const StepSlice& slice : step_.slices()) {
    if (slice.samples && book_.row(slice.id).shares_masks)
      shared_masks_.push_back({.id = slice.id, .words = std::vector<uint32_t>(num_words, ~0u)});
  }
  if (shared_masks_.empty()) return;
  if (runner_.is_first_rank()) {
    book_.fill_shared_masks(backend, shared_masks_);
    mask_news_.begin_writing();
    sync_masks();
  }
  if (runner_.tell_last_stage(mask_news_.bytes())) {
    mask_news_.begin_reading();
    sync_masks();
  }
}

void SamplePass::sync_masks() {
  for (SharedMask& mask : shared_masks_) {
    mask_news_.sync_value(mask.error);
    mask_news_.sync_value(std::span(mask.words));
  }
}

void SamplePass::take_shared_masks() {
  for (SampleChoice& choice : choices_) {
    const auto mask = std::ranges::find(shared_masks_, choice.id, &SharedMask::id);
    if (mask == shared_masks_.end()) continue;
    std::ranges::copy(mask->words, choice.mask.begin());
    if (choice.error.empty()) choice.error = mask->error;
  }
}

// Whoever has no logits has all that they gave before it begins.
void SamplePass::open_news() {
  if (!shares()) return;
  if (has_logits()) return news_.begin_writing();
  runner_.broadcast_from_last_stage(news_.bytes());
  news_.begin_reading();
}

void SamplePass::choose_next_tokens(model::Pass& pass, TensorView hidden) {
  Backend& backend = pass.backend;
  size_t slice = 0;
  chunks_.select_rows(pass, selected_);
  backend.unless_counting([&] { open_news(); });
  for (auto rows = chunks_.next_chunk(); !rows.empty(); rows = chunks_.next_chunk()) {
    const Scratch::Mark mark(backend.scratch());
    const LogitsRow chunk = run_head(pass, rows, hidden);
    collect_choices(pass, rows, chunk, slice);
    if (has_logits()) {
      book_.fill_masks(backend, choices_);
      backend.unless_counting([&] { take_shared_masks(); });
    }
    choose_tokens(backend, chunk);
    backend.unless_counting([&] { commit_chunk(); });
  }
  backend.unless_counting([&] {
    if (has_logits() && shares()) runner_.broadcast_from_last_stage(news_.bytes());
  });
}

// Goes on from `slice`, which has the chunk's first row or is just before it, to its last row's.
void SamplePass::collect_choices(model::Pass& pass, std::span<const int32_t> rows,
                                 const LogitsRow& chunk, size_t& slice) {
  choices_.clear();
  recorded_.clear();
  for (size_t i = 0; i < rows.size(); ++i) {
    while (rows[i] >= step_.slices()[slice].end) ++slice;
    const StepSlice& part = step_.slices()[slice];
    const auto logits_row = static_cast<int32_t>(i);
    record_values(pass, part, rows[i], {chunk.logits, chunk.lse, logits_row});
    if (part.samples && rows[i] >= part.end - 1 - part.num_drafts)
      add_choice(part, rows[i], logits_row);
  }
}

// Row `at` of the pass, where it is of a prompt whose values are wanted.
void SamplePass::record_values(model::Pass& pass, const StepSlice& slice, int32_t at,
                               const LogitsRow& of) {
  const SampleRow& row = book_.row(slice.id);
  const SampleGroup& group = book_.group_of(row);
  const int64_t next = row.position - (slice.end - at) + 1;
  bool reads_prompt = false;
  pass.unless_counting([&] { reads_prompt = records_prompt(row); });
  if (!reads_prompt || next >= group.prompt_size() || !wants_values(*group.request, next)) return;
  recorded_.push_back({slice.id, next, book_.prompt_values(slice.id, next)});
  try {
    if (has_logits()) compute_prompt_values(pass.backend, recorded_.back(), of);
  } catch (const Error& error) {
    book_.set_error(slice.id, error.what());
  }
}

// What a token is chosen by behind row `at` of the pass.
void SamplePass::add_choice(const StepSlice& slice, int32_t at, int32_t logits_row) {
  const SampleRow& row = book_.row(slice.id);
  const int64_t num_drafts = at - (slice.end - 1 - slice.num_drafts);
  SampleChoice& choice = choices_.emplace_back();
  static_cast<ops::TokenChoice&>(choice) = book_.choice_of(row);
  choice.id = slice.id;
  choice.num_drafts = static_cast<size_t>(num_drafts);
  if (!choice.penalties.none() || row.matcher != nullptr) {
    choice.drafts.assign(row.drafts.begin(), row.drafts.begin() + num_drafts);
    choice.before.drafts = choice.drafts;
  }
  choice.row = logits_row;
  choice.step_index = slice.first_index + choice.num_drafts;
  choice.error = row.error;
  const auto k = static_cast<size_t>(book_.group_of(row).request->topk_sample_logprobs);
  choice.topk_ids.resize(k);
  choice.topk_logprobs.resize(k);
}

void SamplePass::compute_prompt_values(Backend& backend, RecordedPrompt& recorded,
                                       const LogitsRow& of) {
  const auto at = static_cast<size_t>(recorded.position);
  const api::SampleRequest& request = *book_.group_of(book_.row(recorded.row)).request;
  PromptValues& values = recorded.values;
  const auto read_logprob = [&](int32_t token, float& out) {
    ops::compute_target_logprobs(backend, of.logits, of.lse, {&of.row, 1}, {&token, 1}, {&out, 1});
  };
  const size_t first_target = request.prompt_targets.range_of(recorded.position).first;
  for (size_t i = 0; i < values.target_logprobs.size(); ++i) {
    const int32_t id = request.prompt_targets.ids[first_target + i];
    if (id >= 0) read_logprob(id, values.target_logprobs[i]);
  }
  if (request.prompt_draws > 0) {
    ops::draw_tokens(backend, of.logits, of.lse, of.row,
                     {.temperature = request.temperature, .seed = request.seed},
                     (at - 1) * values.draw_ids.size(), values.draw_ids, values.draw_logprobs);
  }
  if (!request.wants_prompt_logprobs() || recorded.position < request.first_prompt_logprob) return;
  read_logprob(request.prompt[at], values.logprob);
  if (values.topk_ids.empty()) return;
  ops::compute_topk_logprobs(backend, of.logits, of.lse, of.row, values.topk_ids,
                             values.topk_logprobs);
}

// One for each choice of the chunk, but of rows that cannot be read.
void SamplePass::choose_tokens(Backend& backend, const LogitsRow& chunk) {
  choosing_.clear();
  for (SampleChoice& choice : choices_) {
    if (choice.error.empty()) choosing_.push_back(&choice);
  }
  if (has_logits()) ops::choose_tokens(backend, chunk.logits, chunk.lse, choosing_);
}

// What the chunk gave, also to those that have no logits. A row that cannot be read ends alone.
void SamplePass::commit_chunk() {
  if (shares()) sync_news();
  for (const RecordedPrompt& recorded : recorded_)
    book_.set_prompt_values(recorded.row, recorded.position, recorded.values);
  for (SampleChoice& choice : choices_) {
    if (choice.num_drafts > 0) {
      drafts_->verify_draft(choice);
    } else {
      append_sampled_token(choice.id, take_chosen(choice));
    }
  }
}

// What a chunk of logits gave.
void SamplePass::sync_news() {
  for (RecordedPrompt& recorded : recorded_) {
    std::string error = book_.row(recorded.row).error;
    news_.sync_value(error);
    book_.set_error(recorded.row, error);
    PromptValues& values = recorded.values;
    news_.sync_value(std::span(values.target_logprobs));
    news_.sync_value(std::span(values.draw_ids));
    news_.sync_value(std::span(values.draw_logprobs));
    news_.sync_value(values.logprob);
    news_.sync_value(std::span(values.topk_ids));
    news_.sync_value(std::span(values.topk_logprobs));
  }
  for (SampleChoice& choice : choices_) {
    news_.sync_value(choice.error);
    news_.sync_value(choice.token);
    news_.sync_value(choice.logprob);
    news_.sync_value(std::span(choice.topk_ids));
    news_.sync_value(std::span(choice.topk_logprobs));
  }
}

void SamplePass::append_sampled_token(size_t id, const ChosenToken& choice) {
  if (!choice.error.empty()) {
    book_.set_error(id, choice.error);
    sampled_.push_back({.id = id, .token = -1, .last = true});
    return book_.finish(id);
  }
  const bool last = book_.add_token(id, choice);
  sampled_.push_back({.id = id, .token = choice.token, .logprob = choice.logprob, .last = last});
  if (last) book_.finish(id);
}

}  // namespace strata::engine
