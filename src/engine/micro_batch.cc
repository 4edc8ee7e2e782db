// SPDX-License-Identifier: Apache-2.0
#include "engine/micro_batch.h"

#include "engine/engine.h"

namespace strata::engine {

void MicroBatch::gather(Engine& engine, const api::Batch& batch) {
  builder_.clear();
  targets_.clear();
  first_targets_.clear();
  losses_of_sequences_.clear();
  for (std::vector<float>& column : columns_.values) column.clear();
  for (size_t s = first_; s < last_; ++s) {
    const api::Sequence& sequence = batch.sequences[s];
    const api::Datum& datum = *sequence.datum;
    builder_.add(datum.tokens, 0, engine.adapter_or_base(sequence.slot));
    const auto append = [](auto& out, const auto& values, size_t num, auto otherwise) {
      if (values.empty())
        out.insert(out.end(), num, otherwise);
      else
        out.insert(out.end(), values.begin(), values.end());
    };
    const size_t tokens = datum.tokens.size();
    const auto per_token = static_cast<size_t>(datum.targets_per_token());
    for (size_t row = 0; row < tokens; ++row)
      first_targets_.push_back(static_cast<int64_t>(targets_.size() + row * per_token));
    append(targets_, datum.targets, tokens * per_token, 0);
    for (const api::LossInputRow& input : api::kLossInputs) {
      const bool of_targets = input.id == api::LossInput::kWeights;
      append(columns_[input.id], datum.inputs[input.id], of_targets ? tokens * per_token : tokens,
             input.otherwise);
    }
    losses_of_sequences_.push_back(sequence.loss);
  }
  first_targets_.push_back(static_cast<int64_t>(targets_.size()));
}

PassWork MicroBatch::lay_out(Engine& engine, const api::Batch& batch, size_t first, size_t last) {
  first_ = first;
  last_ = last;
  gather(engine, batch);
  logprobs_.resize(targets_.size());
  losses_.resize(targets_.size());
  top_logprobs_.resize(batch.want_top ? first_targets_.size() - 1 : 0);
  mtp_losses_.assign(batch.mtp_weight > 0.0f ? targets_.size() : 0, 0.0f);
  gradients_ = batch.sequences[first].gradients ? batch.gradients : api::Gradients::kNone;
  const bool trains_indexers = batch.indexer_weight > 0.0f && gradients_ != api::Gradients::kNone;
  indexer_losses_.assign(trains_indexers ? first_targets_.size() - 1 : 0, 0.0f);
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
                              .score_all = batch.score_all},
                   .logprobs = logprobs_,
                   .losses = losses_,
                   .top_logprobs = top_logprobs_,
                   .mtp_weight = batch.mtp_weight,
                   .mtp_losses = mtp_losses_,
                   .indexer_weight = trains_indexers ? batch.indexer_weight : 0.0f,
                   .indexer_losses = indexer_losses_,
                   .want_hidden_states = batch.want_hidden_states,
                   .want_logits = batch.want_logits};
  for (size_t i = 0; i < api::kNumLossInputs; ++i)
    work.inputs.columns.values[i] = columns_.values[i];
  return work;
}

void MicroBatch::give_losses(const api::Batch& batch, api::BatchResult& result) const {
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

void MicroBatch::give_indexer_losses(const api::Batch& batch, api::BatchResult& result) const {
  if (indexer_losses_.empty()) return;
  auto next = indexer_losses_.begin();
  for (size_t s = first_; s < last_; ++s) {
    const auto end = next + std::ssize(batch.sequences[s].datum->tokens);
    result.sequences[s].indexer_losses.assign(next, end);
    next = end;
  }
}

void MicroBatch::note_gradients(Engine& engine, const api::Batch& batch) const {
  if (gradients_ == api::Gradients::kParameters) engine.base_trainer().has_gradient = true;
  if (gradients_ != api::Gradients::kAdapters) return;
  for (size_t s = first_; s < last_; ++s) {
    model::LoraAdapter* adapter = engine.adapter_or_base(batch.sequences[s].slot);
    if (adapter != nullptr) adapter->has_gradient = true;
  }
}

}  // namespace strata::engine
