// SPDX-License-Identifier: Apache-2.0
#include "engine/mtp_pass.h"

#include "ops/elementwise.h"

namespace strata::engine {
namespace {

constexpr api::Loss kLoss = {.name = api::LossName::kCrossEntropy};

// Where a row's targets begin among those of its pass.
size_t first_target(const train::LossInputs& inputs, size_t row) {
  return inputs.first_targets.empty() ? row : static_cast<size_t>(inputs.first_targets[row]);
}

}  // namespace

model::Pass MtpPass::build_pass(const model::Pass& pass, const MtpWork& work) {
  lay_out_rows(pass);
  if (work.want_loss) lay_out_targets(work);
  model::Pass own = builder_.build_like(pass);
  own.is_mtp = true;
  if (pass.dealt == nullptr) return own;
  lay_out_dealt_rows(*pass.dealt);
  own.dealt = &dealt_;
  own.expert_turns = pass.expert_turns;
  return own;
}

// All tokens but each sequence's last, as lay_out_rows() has them of this rank's.
void MtpPass::lay_out_dealt_rows(const model::DealtRows& dealt) {
  dealt_.clear();
  int64_t row = 0;
  const auto end_ranks_before = [&] {
    while (dealt_.first_rows.size() < dealt.first_rows.size() &&
           dealt.first_rows[dealt_.first_rows.size()] <= row)
      dealt_.end_rank();
  };
  for (const model::AdapterSegment& run : dealt.rows.runs()) {
    for (const int64_t end : dealt.rows.ends_of(run)) {
      end_ranks_before();
      dealt_.rows.add_sequence(run.begin + end - row - 1, run.adapter);
      row = run.begin + end;
    }
  }
  end_ranks_before();
}

void MtpPass::lay_out_rows(const model::Pass& pass) {
  builder_.clear();
  rows_.clear();
  losses_of_sequences_.clear();
  for (const model::PassSequence& sequence : pass.sequences) {
    const int64_t count = sequence.end - sequence.begin - 1;
    if (count == 0) continue;
    builder_.append(
        pass.tokens.subspan(static_cast<size_t>(sequence.begin + 1), static_cast<size_t>(count)),
        sequence.first_position, sequence.adapter);
    for (int64_t row = sequence.begin; row < sequence.end - 1; ++row)
      rows_.push_back(static_cast<int32_t>(row));
    losses_of_sequences_.push_back(kLoss);
  }
}

void MtpPass::lay_out_targets(const MtpWork& work) {
  targets_.clear();
  weights_.clear();
  first_targets_.clear();
  for (const int32_t row : rows_) {
    first_targets_.push_back(std::ssize(targets_));
    const auto next = static_cast<size_t>(row) + 1;
    const size_t end = first_target(work.inputs, next + 1);
    for (size_t t = first_target(work.inputs, next); t < end; ++t) {
      targets_.push_back(work.inputs.targets[t]);
      weights_.push_back(work.inputs.weights()[t] * work.weight);
    }
  }
  first_targets_.push_back(std::ssize(targets_));
  logprobs_.resize(targets_.size());
  losses_.resize(targets_.size());
}

void MtpPass::forward(model::Pass& own, const MtpWork& work, TensorView from, TensorView hidden) {
  const TensorView state = own.take(own.dtype(), {std::ssize(rows_), from.cols()});
  ops::gather(own.backend, from, rows_, state);
  tape_.recompute = work.recompute;
  model::mtp_forward(own, tape_, work.backward, state, hidden);
}

// Reported as the decoder's own losses are, by their weights alone.
void MtpPass::write_losses(const MtpWork& work) const {
  for (size_t i = 0; i < rows_.size(); ++i) {
    const auto row = static_cast<size_t>(rows_[i]);
    const size_t to = first_target(work.inputs, row);
    const size_t weight = first_target(work.inputs, row + 1);
    const auto begin = static_cast<size_t>(first_targets_[i]);
    const size_t count = static_cast<size_t>(first_targets_[i + 1]) - begin;
    for (size_t k = 0; k < count; ++k) {
      work.losses[to + k] = train::token_loss({.loss = kLoss,
                                               .logprob = logprobs_[begin + k],
                                               .weight = work.inputs.weights()[weight + k]})
                                .loss;
    }
  }
}

void MtpPass::loss_and_backward(model::Pass& own, const MtpWork& work, TensorView hidden,
                                TensorView d_from) {
  train::LossInputs inputs = {
      .targets = targets_, .first_targets = first_targets_, .losses = losses_of_sequences_};
  inputs.columns[api::LossInput::kWeights] = weights_;
  const TensorView d_hidden = work.backward ? own.take(DType::kF32, hidden.shape) : TensorView();
  TensorView d_state;
  model::in_turn(work.turns, model::kMtpHeadPart, [&] {
    if (own.num_tokens() > 0)
      loss_pass_.compute_losses_and_gradients(own, inputs, hidden, logprobs_, losses_, d_hidden);
    if (!work.backward) return;
    d_state = own.take(DType::kF32, {std::ssize(rows_), d_from.cols()});
    if (own.num_tokens() > 0) model::mtp_norm_backward(own, tape_, d_hidden, d_state);
  });
  own.unless_counting([&] { write_losses(work); });
  if (!work.backward) return;
  model::mtp_layer_backward(own, tape_, work.turns, d_state);
  ops::scatter_add(own.backend, d_state, rows_, d_from);
}

}  // namespace strata::engine
