// SPDX-License-Identifier: Apache-2.0
#include "engine/pass.h"

#include <numeric>
#include <span>

#include "engine/engine.h"
#include "ops/elementwise.h"

namespace strata::engine {
namespace {

// As many values of a result as `part` has, from value `first` on.
std::span<float> values_from(api::NamedTensor& out, int64_t first, const TensorView& part) {
  return std::span(out.values)
      .subspan(static_cast<size_t>(first), static_cast<size_t>(part.shape.num_elements()));
}

void write_hidden_states(Backend& backend, const PassWork& work, TensorView states,
                         TensorView final_hidden) {
  api::NamedTensor& out = work.sink->at("hidden_states");
  const int64_t total = out.shape[1];
  const int64_t width = states.cols();
  for (int64_t i = 0; i < states.shape[0]; ++i) {
    ops::to_host(backend, states.at(i),
                 values_from(out, (i * total + work.first_row) * width, states.at(i)));
  }
  if (final_hidden.empty()) return;
  ops::to_host(backend, final_hidden,
               values_from(work.sink->at("final_hidden"), work.first_row * final_hidden.cols(),
                           final_hidden));
}

// Rows of logits of neighbouring rows of the pass, which stand in the batch at these `places`
// behind its first one.
void write_logit_rows(Backend& backend, const PassWork& work, const std::string& name,
                      std::span<const int32_t> places, TensorView logits) {
  for (int64_t i = 0; i < logits.rows(); ++i) {
    const int64_t row = work.first_row + places[static_cast<size_t>(i)];
    const TensorView one = logits.slice_rows(i, i + 1);
    ops::to_host(backend, one, values_from(work.sink->at(name), row * logits.cols(), one));
  }
}

// `places`: of the pass's rows in the batch, besides its first one.
void write_logits(model::Pass& pass, const PassWork& work, const std::string& name,
                  std::span<const int32_t> places, TensorView hidden, PassState& state) {
  Backend& backend = pass.backend;
  state.all_rows.assign(static_cast<size_t>(pass.num_tokens()), 1);
  model::RowChunks& chunks = state.logit_chunks;
  chunks.select_rows(pass, state.all_rows);
  for (auto rows = chunks.next_chunk(); !rows.empty(); rows = chunks.next_chunk()) {
    const TensorView chunk = hidden.slice_rows(rows.front(), rows.back() + 1);
    const Scratch::Mark mark(backend.scratch());
    const TensorView logits =
        pass.take(DType::kF32, {std::ssize(rows), pass.weights.config().vocab_size});
    model::head_forward(pass, chunks.groups(), chunk, {}, logits);
    const auto own = places.subspan(static_cast<size_t>(rows.front()), rows.size());
    pass.unless_counting([&] { write_logit_rows(backend, work, name, own, logits); });
  }
}

// Lets the next pass go on where this one adds nothing to what multi-token prediction accumulates.
void skip_mtp_turns(const PassWork& work) {
  model::in_turn(work.turns, model::kMtpHeadPart, [] {});
  model::in_turn(work.expert_turns, model::kMtpPart, [] {});
  model::in_turn(work.turns, model::kMtpPart, [] {});
}

// Multi-token prediction over the pass, which reads `from`. d_from, like it in f32, or empty: its
// gradient, which is added to.
void run_mtp(model::Pass& pass, const PassWork& work, TensorView from, TensorView d_from,
             PassState& state) {
  const TraceSpan span = model::traced(pass, "mtp", "tokens", pass.num_tokens());
  const Scratch::Mark mark(pass.backend.scratch());
  const MtpWork mtp = {.weight = work.mtp_weight,
                       .backward = work.backward(),
                       .recompute = work.recompute,
                       .want_loss = work.want_loss,
                       .inputs = work.inputs,
                       .turns = work.turns,
                       .losses = work.mtp_losses};
  model::Pass own = state.mtp.build_pass(pass, mtp);
  const model::RowGroups& rows_of_all = own.expert_rows();
  if (rows_of_all.num_rows_total() == 0) return skip_mtp_turns(work);
  const TensorView hidden =
      pass.take(pass.dtype(), {own.num_tokens(), pass.weights.config().hidden_size});
  state.mtp.forward(own, mtp, from, hidden);
  if (work.want_logits) write_logits(own, work, "mtp_logits", state.mtp.rows(), hidden, state);
  if (work.want_loss) state.mtp.loss_and_backward(own, mtp, hidden, d_from);
}

// Values, or where there are none so many times `otherwise`.
template <typename T>
void append_with_default(std::vector<T>& out, const std::vector<T>& values, size_t count,
                         T otherwise) {
  if (values.empty())
    out.insert(out.end(), count, otherwise);
  else
    out.insert(out.end(), values.begin(), values.end());
}

}  // namespace

StagePass::StagePass(Backend& backend, Engine& engine, const PassWork& work, PassState& state)
    : work_(work),
      state_(state),
      pass_(work.builder.build(backend, *engine.model().weights, engine.workspace().ropes(),
                               engine.cache_layout())),
      head_apart_(work.base_gradients != nullptr && engine.base_trainer().share().num_owners > 1) {
  pass_.adapter_gradients = work.adapter_gradients;
  pass_.base_gradients = work.base_gradients;
  pass_.dealt = work.dealt;
  pass_.expert_turns = work.expert_turns;
  indexer_loss_ = {.weight = work.indexer_weight, .losses = work.indexer_losses};
  if (work.indexer_weight > 0.0f) pass_.indexer_loss = &indexer_loss_;
  take_states_and_hidden();
  state.tape.turns = work.turns;
  state.tape.recompute = work.recompute;
  state.tape.regions = work.regions;
  state.tape.d = {};
  state.tape.layers_done = nullptr;
}

// Takes what the stage reads and gives, from the scratch.
void StagePass::take_states_and_hidden() {
  const model::ModelWeights& weights = pass_.weights;
  const Shape shape = border_shape();
  Scratch& scratch = pass_.backend.scratch();
  if (weights.ends()) {
    hidden_ = scratch.take(pass_.dtype(), {shape[0], weights.config().hidden_size}, "final_hidden");
  }
  if (work_.want_hidden_states) {
    const int64_t entries = weights.part().size() + (weights.ends() ? 1 : 0);
    states_ = scratch.take(DType::kF32, {entries, shape[0], weights.config().state_width()},
                           "hidden_states");
  }
  state_.tape.first =
      weights.begins() ? TensorView() : scratch.take(pass_.dtype(), shape, "decoder_layer_input");
}

Shape StagePass::border_shape() const {
  return {pass_.num_tokens(), model::border_width(pass_.weights.config())};
}

Shape StagePass::gradient_shape() const {
  return {pass_.num_tokens(),
          model::border_gradient_width(pass_.weights.config(), model::trains_before_layers(pass_))};
}

void StagePass::forward(TensorView memory) {
  state_.tape.last_memory = memory;
  {
    const TraceSpan span = model::traced(pass_, "forward", "tokens", pass_.num_tokens());
    model::decoder_forward(pass_, state_.tape, work_.backward(), states_, hidden_);
  }
  write_large_results();
}

void StagePass::write_large_results() {
  if (work_.want_hidden_states) {
    // With streams the last entry is not what the final norm made, even where there is but one.
    pass_.unless_counting([&] {
      write_hidden_states(pass_.backend, work_, states_,
                          pass_.weights.config().streams ? hidden_ : TensorView());
    });
  }
  if (!work_.want_logits || !pass_.weights.ends()) return;
  state_.all_rows_in_order.resize(static_cast<size_t>(pass_.num_tokens()));
  std::iota(state_.all_rows_in_order.begin(), state_.all_rows_in_order.end(), 0);
  write_logits(pass_, work_, "logits", state_.all_rows_in_order, hidden_, state_);
}

void StagePass::compute_losses_and_gradients() {
  if (!pass_.weights.ends()) return;
  if (work_.want_loss && pass_.num_tokens() > 0) run_loss_pass();
  if (work_.mtp_weight == 0.0f) return;
  const model::ModelConfig& config = pass_.weights.config();
  if (work_.trains() && !config.mtp_reads_hidden) {
    d_last_ = pass_.take(DType::kF32, state_.tape.last.shape);
    ops::fill_zero(pass_.backend, d_last_);
  }
  run_mtp(pass_, work_, model::mtp_state(config, state_.tape.last, hidden_),
          model::mtp_state(config, d_last_, d_hidden_), state_);
}

void StagePass::run_loss_pass() {
  if (work_.backward()) {
    d_hidden_ = pass_.backend.scratch().take(DType::kF32, hidden_.shape, "final_hidden");
  }
  const TraceSpan span = model::traced(pass_, "loss", "tokens", pass_.num_tokens());
  state_.loss_pass.compute_losses_and_gradients(pass_, work_.inputs, hidden_, work_.logprobs,
                                                work_.losses, d_hidden_, work_.top_logprobs,
                                                {.turns = work_.turns, .apart = head_apart_});
}

void StagePass::backward(TensorView d, model::DeferredProducts* deferred) {
  state_.tape.d = d;
  pass_.deferred = deferred;
  const TraceSpan span = model::traced(pass_, "backward", "tokens", pass_.num_tokens());
  model::decoder_backward(pass_, state_.tape, d_hidden_, d_last_);
}

void count_pass_memory(Backend& counter, Engine& engine, const PassWork& work, PassState& state) {
  const Scratch::Mark mark(counter.scratch());
  const Scratch::Mark files_mark(counter.file_scratch());
  StagePass pass(counter, engine, work, state);
  pass.forward();
  pass.compute_losses_and_gradients();
  if (!work.trains()) return;
  pass.backward(counter.scratch().take(DType::kF32, pass.gradient_shape()));
}

int64_t count_stage_pass(Backend& counter, Engine& engine, const PassWork& work, PassState& state,
                         bool defers) {
  Scratch borders = Scratch::counting(Scratch::Counted::kBorders);
  Scratch copies = Scratch::counting(Scratch::Counted::kDeferred);
  model::DeferredProducts deferred(copies);
  const Scratch::Mark files_mark(counter.file_scratch());
  StagePass pass(counter, engine, work, state);
  const bool ends = engine.model().weights->ends();
  const DType dtype = engine.model().weights->compute_dtype();
  pass.forward(ends ? TensorView() : borders.take(dtype, pass.border_shape()));
  pass.compute_losses_and_gradients();
  if (work.trains()) {
    pass.backward(borders.take(DType::kF32, pass.gradient_shape()), defers ? &deferred : nullptr);
  }
  deferred.run_deferred(counter);
  return copies.high_water();
}

void MicroBatch::lay_out_sequences(Engine& engine, const api::Batch& batch) {
  builder_.clear();
  targets_.clear();
  first_targets_.clear();
  losses_of_sequences_.clear();
  references_.clear();
  for (std::vector<float>& column : columns_.values) column.clear();
  for (size_t s = first_; s < last_; ++s) {
    const api::Sequence& sequence = batch.sequences[s];
    builder_.append(sequence.datum->tokens, 0, engine.slot_adapter(sequence.slot));
    append_loss_inputs(*sequence.datum);
    losses_of_sequences_.push_back(sequence.loss);
    references_.push_back(sequence.reference);
  }
  first_targets_.push_back(static_cast<int64_t>(targets_.size()));
}

void MicroBatch::append_loss_inputs(const api::Datum& datum) {
  const size_t tokens = datum.tokens.size();
  const auto per_token = static_cast<size_t>(datum.targets_per_token());
  for (size_t row = 0; row < tokens; ++row)
    first_targets_.push_back(static_cast<int64_t>(targets_.size() + row * per_token));
  append_with_default(targets_, datum.targets, tokens * per_token, 0);
  for (const api::LossInputRow& input : api::kLossInputs) {
    const bool of_targets = input.id == api::LossInput::kWeights;
    append_with_default(columns_[input.id], datum.inputs[input.id],
                        of_targets ? tokens * per_token : tokens, input.otherwise);
  }
}

// For what the pass gives of the sequences laid out.
void MicroBatch::resize_results(const api::Batch& batch) {
  const size_t num_rows = first_targets_.size() - 1;
  logprobs_.resize(targets_.size());
  losses_.resize(targets_.size());
  top_logprobs_.resize(batch.want_top ? num_rows : 0);
  mtp_losses_.assign(batch.mtp_weight > 0.0f ? targets_.size() : 0, 0.0f);
  indexer_losses_.assign(trains_indexers(batch) ? num_rows : 0, 0.0f);
}

PassWork MicroBatch::collate(Engine& engine, const api::Batch& batch, size_t first, size_t last) {
  first_ = first;
  last_ = last;
  const bool takes = first < last && batch.sequences[first].gradients;
  gradients_ = takes ? batch.gradients : api::Gradients::kNone;
  lay_out_sequences(engine, batch);
  resize_results(batch);
  PassWork work = {.builder = builder_,
                   .adapter_gradients = gradients_ == api::Gradients::kAdapters,
                   .base_gradients = gradients_ == api::Gradients::kParameters
                                         ? engine.base_trainer().gradients()
                                         : nullptr,
                   .recompute = engine.options().recompute,
                   .regions = engine.options().regions,
                   .want_loss = batch.want_loss,
                   .inputs = {.targets = targets_,
                              .first_targets = first_targets_,
                              .losses = losses_of_sequences_,
                              .references = references_,
                              .score_all = batch.score_all},
                   .logprobs = logprobs_,
                   .losses = losses_,
                   .top_logprobs = top_logprobs_,
                   .mtp_weight = batch.mtp_weight,
                   .mtp_losses = mtp_losses_,
                   .indexer_weight = trains_indexers(batch) ? batch.indexer_weight : 0.0f,
                   .indexer_losses = indexer_losses_,
                   .want_hidden_states = batch.want_hidden_states,
                   .want_logits = batch.want_logits};
  for (size_t i = 0; i < api::kNumLossInputs; ++i)
    work.inputs.columns.values[i] = columns_.values[i];
  return work;
}

void MicroBatch::store_logprobs_and_losses(const api::Batch& batch,
                                           api::BatchResult& result) const {
  size_t row = 0;
  for (size_t s = first_; s < last_; ++s) {
    const auto first_token = static_cast<int64_t>(row);
    const auto begin = first_targets_[row];
    row += batch.sequences[s].datum->tokens.size();
    const auto end = first_targets_[row];
    result.sequences[s].logprobs.assign(logprobs_.begin() + begin, logprobs_.begin() + end);
    result.sequences[s].losses.assign(losses_.begin() + begin, losses_.begin() + end);
    if (!top_logprobs_.empty()) {
      result.sequences[s].top_logprobs.assign(top_logprobs_.begin() + first_token,
                                              top_logprobs_.begin() + static_cast<int64_t>(row));
    }
    if (mtp_losses_.empty()) continue;
    result.sequences[s].mtp_losses.assign(mtp_losses_.begin() + begin, mtp_losses_.begin() + end);
  }
}

void MicroBatch::store_indexer_losses(const api::Batch& batch, api::BatchResult& result) const {
  if (indexer_losses_.empty()) return;
  auto next = indexer_losses_.begin();
  for (size_t s = first_; s < last_; ++s) {
    const auto end = next + std::ssize(batch.sequences[s].datum->tokens);
    result.sequences[s].indexer_losses.assign(next, end);
    next = end;
  }
}

void MicroBatch::mark_has_gradient(Engine& engine, const api::Batch& batch) const {
  if (gradients_ == api::Gradients::kParameters) engine.base_trainer().has_gradient = true;
  if (gradients_ != api::Gradients::kAdapters) return;
  for (size_t s = first_; s < last_; ++s) {
    model::LoraAdapter* adapter = engine.slot_adapter(batch.sequences[s].slot);
    if (adapter != nullptr) adapter->has_gradient = true;
  }
}

}  // namespace strata::engine
