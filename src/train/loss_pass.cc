// SPDX-License-Identifier: Apache-2.0
#include "train/loss_pass.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "ops/elementwise.h"
#include "ops/gemm.h"
#include "ops/log_softmax.h"

namespace strata::train {

LossPass::Range LossPass::targets_of(const LossInputs& inputs, size_t row) {
  if (inputs.first_targets.empty()) return {row, row + 1};
  return {static_cast<size_t>(inputs.first_targets[row]),
          static_cast<size_t>(inputs.first_targets[row + 1])};
}

void LossPass::check_sizes(const model::Pass& pass, const LossInputs& inputs,
                           std::span<const float> logprobs, std::span<const float> losses,
                           std::span<const float> top_logprobs) {
  const auto tokens = static_cast<size_t>(pass.num_tokens());
  const size_t targets = inputs.targets.size();
  CHECK(inputs.weights().size() == targets && targets >= tokens, targets, tokens);
  CHECK(logprobs.size() == targets && losses.size() == targets);
  CHECK(inputs.first_targets.empty() ? targets == tokens
                                     : inputs.first_targets.size() == tokens + 1);
  CHECK(inputs.losses.size() == pass.sequences.size());
  CHECK(inputs.references.empty() || inputs.references.size() == pass.sequences.size());
  CHECK(top_logprobs.empty() || top_logprobs.size() == tokens);
}

void LossPass::list_row_sequences(const model::Pass& pass) {
  row_sequences_.resize(static_cast<size_t>(pass.num_tokens()));
  for (size_t s = 0; s < pass.sequences.size(); ++s) {
    for (int64_t row = pass.sequences[s].begin; row < pass.sequences[s].end; ++row)
      row_sequences_[static_cast<size_t>(row)] = static_cast<int32_t>(s);
  }
}

void LossPass::compute_losses_and_gradients(model::Pass& pass, const LossInputs& inputs,
                                            TensorView hidden, std::span<float> logprobs,
                                            std::span<float> losses, TensorView d_hidden,
                                            std::span<float> top_logprobs, const HeadTurns& head) {
  check_sizes(pass, inputs, logprobs, losses, top_logprobs);
  top_logprobs_ = top_logprobs;
  std::fill(top_logprobs.begin(), top_logprobs.end(), 0.0f);
  selected_.resize(static_cast<size_t>(pass.num_tokens()));
  target_slopes_.resize(inputs.targets.size());
  list_row_sequences(pass);
  compute_sequence_values(pass, inputs, hidden, logprobs);
  select_rows(inputs);
  std::fill(logprobs.begin(), logprobs.end(), 0.0f);
  std::fill(losses.begin(), losses.end(), 0.0f);
  if (!d_hidden.empty()) ops::fill_zero(pass.backend, d_hidden);
  run_chunks(pass, inputs, hidden, logprobs, losses, d_hidden, head);
  write_pair_losses(pass, inputs, losses);
}

void LossPass::select_rows(const LossInputs& inputs) {
  for (size_t row = 0; row < selected_.size(); ++row) {
    const Range range = targets_of(inputs, row);
    selected_[row] = inputs.score_all ? 1 : 0;
    for (size_t t = range.begin; t < range.end; ++t)
      selected_[row] |= inputs.weights()[t] != 0.0f ? 1 : 0;
  }
}

void LossPass::run_chunks(model::Pass& pass, const LossInputs& inputs, TensorView hidden,
                          std::span<float> logprobs, std::span<float> losses, TensorView d_hidden,
                          const HeadTurns& head) {
  const Scratch::Mark mark(pass.backend.scratch());
  const bool apart = head.apart && !d_hidden.empty() && !model::head_gradient(pass).empty();
  const int64_t num_selected = std::count(selected_.begin(), selected_.end(), 1);
  const int64_t most = apart ? std::min(kApartRows, num_selected) : 0;
  const Kept kept = take_scratch_for_kept(pass, most, hidden.cols());
  chunks_.select_rows(pass, selected_);
  auto rows = run_kept_chunks(pass, inputs, hidden, logprobs, losses, d_hidden, kept, most);
  const bool all = rows.empty();
  add_head_gradient_in_turns(pass, kept, head.turns, /*ends_turns=*/all);
  for (; !rows.empty(); rows = chunks_.next_chunk())
    run_chunk(pass, inputs, rows, hidden, logprobs, losses, d_hidden, {});
  if (head.turns != nullptr && !all) end_head_turns(*head.turns);
}

std::span<const int32_t> LossPass::run_kept_chunks(model::Pass& pass, const LossInputs& inputs,
                                                   TensorView hidden, std::span<float> logprobs,
                                                   std::span<float> losses, TensorView d_hidden,
                                                   const Kept& kept, int64_t most) {
  kept_chunks_.clear();
  kept_ends_.clear();
  int64_t num_kept = 0;
  auto rows = chunks_.next_chunk();
  for (; !rows.empty() && num_kept + std::ssize(rows) <= most; rows = chunks_.next_chunk()) {
    const int64_t end = num_kept + std::ssize(rows);
    run_chunk(pass, inputs, rows, hidden, logprobs, losses, d_hidden, kept.rows(num_kept, end));
    note_kept_chunk(std::ssize(rows));
    num_kept = end;
  }
  return rows;
}

LossPass::Kept LossPass::take_scratch_for_kept(model::Pass& pass, int64_t num_rows, int64_t width) {
  if (num_rows == 0) return {};
  Scratch& scratch = pass.backend.scratch();
  const TensorView x = scratch.take(pass.dtype(), {num_rows, width});
  return {x, scratch.take(pass.dtype(), {num_rows, pass.weights.config().vocab_size})};
}

void LossPass::end_head_turns(model::GradientTurns& turns) {
  for (int64_t part = 0; part < model::kHeadParts; ++part) turns.end(model::kHeadPart - part);
}

void LossPass::note_kept_chunk(int64_t num_rows) {
  const std::span<const int64_t> ends = chunks_.groups().ends();
  kept_chunks_.push_back({num_rows, kept_ends_.size(), ends.size()});
  kept_ends_.insert(kept_ends_.end(), ends.begin(), ends.end());
}

void LossPass::add_head_gradient_in_turns(model::Pass& pass, const Kept& kept,
                                          model::GradientTurns* turns, bool ends_turns) {
  for (int64_t part = 0; part < model::kHeadParts; ++part) {
    if (turns != nullptr) turns->begin(model::kHeadPart - part);
    add_head_gradient(pass, kept, part);
    if (turns != nullptr && ends_turns) turns->end(model::kHeadPart - part);
  }
}

void LossPass::add_head_gradient(model::Pass& pass, const Kept& kept, int64_t part) {
  if (kept_chunks_.empty()) return;
  const TensorView gradient = model::head_gradient(pass);
  const model::HeadRows of = model::rows_of_head_part(gradient.rows(), part);
  if (of.first == of.end) return;
  const int64_t output = model::first_output_of_head(pass);
  int64_t first = 0;
  for (const KeptChunk& chunk : kept_chunks_) {
    const Kept rows = kept.rows(first, first + chunk.num_rows);
    ops::gemm_dw(pass.backend, rows.d_logits.slice_cols(output + of.first, output + of.end), rows.x,
                 std::span(kept_ends_).subspan(chunk.first_end, chunk.num_ends),
                 gradient.slice_rows(of.first, of.end));
    first += chunk.num_rows;
  }
}

// What a formula makes of a sequence, or of a pair, needs logprobs of the whole of it before the
// first slope: such rows go through the head twice, with the same bits. `logprobs` is used as
// scratch.
void LossPass::compute_sequence_values(model::Pass& pass, const LossInputs& inputs,
                                       TensorView hidden, std::span<float> logprobs) {
  sequence_values_.assign(pass.sequences.size(), 1.0f);
  pair_losses_.assign(pass.sequences.size(), 0.0f);
  if (!select_scored_rows(inputs)) return;
  score_selected_rows(pass, inputs, hidden, logprobs);
  for (size_t s = 0; s < pass.sequences.size(); ++s) {
    const api::LossRow& row = api::row_of(inputs.losses[s].name);
    if (row.mean_over)
      sequence_values_[s] = sequence_value(sequence_inputs_of(pass, inputs, s, logprobs));
    if (row.of_pairs) compute_pair_value(pass, inputs, s++, logprobs);
  }
}

void LossPass::compute_pair_value(const model::Pass& pass, const LossInputs& inputs, size_t s,
                                  std::span<const float> logprobs) {
  CHECK(s + 1 < inputs.losses.size() && inputs.losses[s + 1] == inputs.losses[s], s);
  const PairLoss pair = pair_loss(inputs.losses[s], pair_side_of(pass, inputs, s, logprobs),
                                  pair_side_of(pass, inputs, s + 1, logprobs));
  pair_losses_[s] = pair.loss;
  sequence_values_[s] = pair.d_chosen;
  sequence_values_[s + 1] = pair.d_rejected;
}

bool LossPass::is_in_pair(const LossInputs& inputs, size_t row) {
  const std::span<const float> mask = inputs.columns[api::LossInput::kSequenceRatioMask];
  return inputs.weights()[targets_of(inputs, row).begin] != 0.0f &&
         (mask.empty() || mask[row] != 0.0f);
}

// The sum is a double, tokens ascending, rounded once.
PairSide LossPass::pair_side_of(const model::Pass& pass, const LossInputs& inputs, size_t s,
                                std::span<const float> logprobs) {
  PairSide side = {.reference = inputs.references[s]};
  double sum = 0.0;
  for (int64_t row = pass.sequences[s].begin; row < pass.sequences[s].end; ++row) {
    if (!is_in_pair(inputs, static_cast<size_t>(row))) continue;
    sum += static_cast<double>(logprobs[targets_of(inputs, static_cast<size_t>(row)).begin]);
    ++side.num_targets;
  }
  side.logprob = static_cast<float>(sum);
  return side;
}

void LossPass::write_pair_losses(const model::Pass& pass, const LossInputs& inputs,
                                 std::span<float> losses) const {
  for (size_t s = 0; s < pass.sequences.size(); ++s) {
    if (!api::row_of(inputs.losses[s].name).of_pairs) continue;
    size_t target = targets_of(inputs, static_cast<size_t>(pass.sequences[s].begin)).begin;
    while (inputs.weights()[target] == 0.0f) ++target;
    losses[target] += inputs.weights()[target] * pair_losses_[s];
    ++s;
  }
}

SequenceInputs LossPass::sequence_inputs_of(const model::Pass& pass, const LossInputs& inputs,
                                            size_t s, std::span<const float> logprobs) {
  const auto begin = static_cast<size_t>(pass.sequences[s].begin);
  const auto count = static_cast<size_t>(pass.sequences[s].end) - begin;
  SequenceInputs in = {.loss = inputs.losses[s],
                       .logprobs = logprobs.subspan(targets_of(inputs, begin).begin, count)};
  for (const api::LossInput input : api::row_of(inputs.losses[s].name).inputs)
    in.columns[input] = inputs.columns[input].subspan(begin, count);
  return in;
}

bool LossPass::select_scored_rows(const LossInputs& inputs) {
  bool any = false;
  for (size_t row = 0; row < selected_.size(); ++row) {
    const api::Loss& loss = inputs.losses[static_cast<size_t>(row_sequences_[row])];
    const std::optional<api::LossInput> mask = api::row_of(loss.name).mean_over;
    const bool wanted = (mask && inputs.columns[*mask][row] != 0.0f) ||
                        (api::row_of(loss.name).of_pairs && is_in_pair(inputs, row));
    selected_[row] = wanted ? 1 : 0;
    any = any || wanted;
  }
  return any;
}

void LossPass::score_selected_rows(model::Pass& pass, const LossInputs& inputs, TensorView hidden,
                                   std::span<float> logprobs) {
  chunks_.select_rows(pass, selected_);
  for (auto rows = chunks_.next_chunk(); !rows.empty(); rows = chunks_.next_chunk()) {
    Scratch& scratch = pass.backend.scratch();
    const Scratch::Mark mark(scratch);
    const auto count = static_cast<int64_t>(rows.size());
    const TensorView x = scratch.take(pass.dtype(), {count, hidden.cols()});
    const TensorView lse = scratch.take(DType::kF32, {count, 2});
    ops::gather(pass.backend, hidden, rows, x);
    compute_logits_and_logprobs(pass, inputs, rows, x, {}, lse, logprobs);
  }
}

void LossPass::list_targets(const LossInputs& inputs, std::span<const int32_t> rows) {
  chunk_targets_.resize(rows.size());
  target_rows_.clear();
  target_ids_.clear();
  for (size_t i = 0; i < rows.size(); ++i) {
    const Range range = targets_of(inputs, static_cast<size_t>(rows[i]));
    chunk_targets_[i] = inputs.targets[range.begin];
    for (size_t t = range.begin; t < range.end; ++t) {
      target_rows_.push_back(static_cast<int32_t>(i));
      target_ids_.push_back(inputs.targets[t]);
    }
  }
  target_logprobs_.resize(target_ids_.size());
}

TensorView LossPass::compute_logits_and_logprobs(model::Pass& pass, const LossInputs& inputs,
                                                 std::span<const int32_t> rows, TensorView x,
                                                 TensorView h, TensorView lse,
                                                 std::span<float> logprobs) {
  const int64_t vocab = pass.weights.config().vocab_size;
  const TensorView logits =
      pass.backend.scratch().take(DType::kF32, {static_cast<int64_t>(rows.size()), vocab});
  model::head_forward(pass, chunks_.groups(), x, h, logits);
  ops::logsumexp(pass.backend, logits, lse);
  list_targets(inputs, rows);
  ops::compute_target_logprobs(pass.backend, logits, lse, target_rows_, target_ids_,
                               target_logprobs_);
  pass.unless_counting([&] { write_logprobs(inputs, rows, logprobs); });
  return logits;
}

void LossPass::write_logprobs(const LossInputs& inputs, std::span<const int32_t> rows,
                              std::span<float> logprobs) const {
  auto next = target_logprobs_.begin();
  for (const int32_t row : rows) {
    const Range range = targets_of(inputs, static_cast<size_t>(row));
    for (size_t t = range.begin; t < range.end; ++t) logprobs[t] = *next++;
  }
}

void LossPass::write_top_logprobs(model::Pass& pass, std::span<const int32_t> rows,
                                  TensorView lse) {
  pass.unless_counting([&] {
    lse_.resize(2 * rows.size());
    ops::to_host(pass.backend, lse, lse_);
    for (size_t i = 0; i < rows.size(); ++i) {
      const float* of_row = lse_.data() + 2 * i;
      top_logprobs_[static_cast<size_t>(rows[i])] = ops::logprob(of_row[0], of_row);
    }
  });
}

TokenInputs LossPass::token_inputs_of(const LossInputs& inputs, size_t row) const {
  const auto sequence = static_cast<size_t>(row_sequences_[row]);
  TokenInputs in = {.loss = inputs.losses[sequence], .sequence = sequence_values_[sequence]};
  for (const api::LossInputRow& input : api::kLossInputs) {
    if (input.id == api::LossInput::kWeights) continue;
    const std::span<const float> column = inputs.columns[input.id];
    in.columns[input.id] = column.empty() ? input.otherwise : column[row];
  }
  return in;
}

void LossPass::compute_row_losses_and_slopes(const LossInputs& inputs, size_t i, size_t row,
                                             std::span<const float> logprobs,
                                             std::span<float> losses) {
  TokenInputs in = token_inputs_of(inputs, row);
  const Range range = targets_of(inputs, row);
  float slope = 0.0f;
  for (size_t t = range.begin; t < range.end; ++t) {
    in.logprob = logprobs[t];
    in.weight = inputs.weights()[t];
    const TokenLoss token = token_loss(in);
    losses[t] = token.loss;
    target_slopes_[t] = token.d_logprob;
    slope += token.d_logprob;
  }
  chunk_slopes_[i] = slope;
}

void LossPass::run_chunk(model::Pass& pass, const LossInputs& inputs, std::span<const int32_t> rows,
                         TensorView hidden, std::span<float> logprobs, std::span<float> losses,
                         TensorView d_hidden, const Kept& kept) {
  Scratch& scratch = pass.backend.scratch();
  const Scratch::Mark mark(scratch);
  const auto count = static_cast<int64_t>(rows.size());
  const TensorView x = kept.x.empty() ? scratch.take(pass.dtype(), {count, hidden.cols()}) : kept.x;
  const TensorView lse = scratch.take(DType::kF32, {count, 2});
  const int64_t rank = model::largest_rank(chunks_.groups(), -1, model::head_target(pass));
  const TensorView h = rank == 0 ? TensorView() : scratch.take(pass.dtype(), {count, rank});
  ops::gather(pass.backend, hidden, rows, x);
  const TensorView logits = compute_logits_and_logprobs(pass, inputs, rows, x, h, lse, logprobs);
  if (!top_logprobs_.empty()) write_top_logprobs(pass, rows, lse);
  chunk_slopes_.resize(rows.size());
  pass.unless_counting([&] {
    for (size_t i = 0; i < rows.size(); ++i)
      compute_row_losses_and_slopes(inputs, i, static_cast<size_t>(rows[i]), logprobs, losses);
  });
  if (!d_hidden.empty())
    run_chunk_backward(pass, inputs, {rows, x, h, lse, logits}, logprobs, d_hidden, kept);
}

TensorView LossPass::in_place_of(TensorView logits, DType dtype) {
  TensorView d_logits(logits.data, dtype, logits.shape);
  d_logits.row_stride = logits.cols() * dtype_bytes(DType::kF32) / dtype_bytes(dtype);
  return d_logits;
}

void LossPass::run_chunk_backward(model::Pass& pass, const LossInputs& inputs, const Chunk& chunk,
                                  std::span<const float> logprobs, TensorView d_hidden,
                                  const Kept& kept) {
  const auto count = static_cast<int64_t>(chunk.rows.size());
  const bool is_kept = !kept.d_logits.empty();
  const TensorView d_logits = is_kept ? kept.d_logits : in_place_of(chunk.logits, pass.dtype());
  ops::log_softmax_backward(pass.backend, chunk.logits, chunk.lse, chunk_targets_, chunk_slopes_,
                            d_logits, pass.weights.config().logit_map);
  if (!inputs.first_targets.empty()) {
    pass.unless_counting(
        [&] { scatter_target_gradients(pass, inputs, chunk, logprobs, d_logits); });
  }
  const TensorView d_x = pass.backend.scratch().take(DType::kF32, {count, chunk.x.cols()});
  model::head_backward(pass, chunks_.groups(), chunk.x, chunk.h, d_logits, d_x,
                       is_kept ? TensorView() : model::head_gradient(pass));
  ops::scatter_add(pass.backend, d_x, chunk.rows, d_hidden);
}

void LossPass::sort_targets_by_token(const LossInputs& inputs, Range range) {
  order_.resize(range.end - range.begin);
  for (size_t k = 0; k < order_.size(); ++k) order_[k] = range.begin + k;
  std::sort(order_.begin(), order_.end(), [&](size_t a, size_t b) {
    return std::pair(inputs.targets[a], a) < std::pair(inputs.targets[b], b);
  });
}

// A token may be a target more than once.
float LossPass::next_token_slope(const LossInputs& inputs, size_t& k) const {
  const int32_t token = inputs.targets[order_[k]];
  float sum = 0.0f;
  for (; k < order_.size() && inputs.targets[order_[k]] == token; ++k)
    sum += target_slopes_[order_[k]];
  return sum;
}

// With slopes g_k of K targets and S their sum, d logit_j = sum_k g_k (j == target_k) - S p_j. The
// kernel wrote it for one target with slope S, so only the targets' own entries are left. A capped
// logit is its logprob and the two parts of lse again.
void LossPass::scatter_target_gradients(model::Pass& pass, const LossInputs& inputs,
                                        const Chunk& chunk, std::span<const float> logprobs,
                                        TensorView d_logits) {
  const ops::LogitMap& map = pass.weights.config().logit_map;
  target_rows_.clear();
  target_ids_.clear();
  further_values_.clear();
  lse_.resize(2 * chunk.rows.size());
  ops::to_host(pass.backend, chunk.lse, lse_);
  for (size_t i = 0; i < chunk.rows.size(); ++i) {
    const Range range = targets_of(inputs, static_cast<size_t>(chunk.rows[i]));
    if (range.end - range.begin == 1) continue;
    sort_targets_by_token(inputs, range);
    for (size_t k = 0; k < order_.size();) {
      const size_t first = order_[k];
      const float own = next_token_slope(inputs, k);
      target_rows_.push_back(static_cast<int32_t>(i));
      target_ids_.push_back(inputs.targets[first]);
      const float slope = own - chunk_slopes_[i] * std::exp(logprobs[first]);
      const float logit = (logprobs[first] + lse_[2 * i + 1]) + lse_[2 * i];
      further_values_.push_back(slope * map.slope(logit));
    }
  }
  ops::scatter_values(pass.backend, target_rows_, target_ids_, further_values_, d_logits);
}

}  // namespace strata::train
