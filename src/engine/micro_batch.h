// SPDX-License-Identifier: Apache-2.0
// MicroBatch: neighbouring sequences of a batch laid out flat for one pass, with what their losses
// read and space for what they give. Owns the arrays that the pass borrows and reuses them, so that
// a warm step allocates nothing. Engine thread only.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "api/batch.h"
#include "engine/pass.h"

namespace strata::engine {

class MicroBatch {
 public:
  // Sequences [first, last), which take gradients alike. The pass borrows this until the next call.
  PassWork lay_out(Engine& engine, const api::Batch& batch, size_t first, size_t last);

  [[nodiscard]] const PassBuilder& builder() const { return builder_; }
  [[nodiscard]] PassState& state() { return state_; }
  // Of all targets, sequence by sequence; what a pass wrote.
  [[nodiscard]] std::vector<float>& logprobs() { return logprobs_; }
  [[nodiscard]] std::vector<float>& losses() { return losses_; }
  // Of each token, a sum over the layers that have run; empty where indexers do not train.
  [[nodiscard]] std::span<float> indexer_losses() { return indexer_losses_; }
  // Into the results of the sequences laid out: what the model's end gives, and what is a sum over
  // all its layers.
  void give_losses(const api::Batch& batch, api::BatchResult& result) const;
  void give_indexer_losses(const api::Batch& batch, api::BatchResult& result) const;
  // Tells the adapters, or the base parameters, that have gradients now.
  void note_gradients(Engine& engine, const api::Batch& batch) const;

 private:
  void gather(Engine& engine, const api::Batch& batch);

  size_t first_ = 0, last_ = 0;
  PassBuilder builder_;
  PassState state_;
  std::vector<int32_t> targets_;
  std::vector<int64_t> first_targets_;
  api::ByLossInput<std::vector<float>> columns_;
  std::vector<api::Loss> losses_of_sequences_;
  std::vector<float> logprobs_, losses_, top_logprobs_, mtp_losses_, indexer_losses_;
  api::Gradients gradients_ = api::Gradients::kNone;
};

}  // namespace strata::engine
