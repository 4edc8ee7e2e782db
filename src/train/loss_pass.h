// SPDX-License-Identifier: Apache-2.0
// LossPass: from the final hidden states of a pass to logprobs, losses and the gradient of the
// hidden states, in chunks of rows; all logits never exist at once and rows without a weight never
// reach the head, unless all are to be scored. T tokens, D model width, V vocabulary, M targets: a
// row has one target, or (cross_entropy) K of them. Engine thread only; reuses its buffers.
#pragma once
#include <span>
#include <vector>

#include "model/head.h"
#include "train/loss.h"

namespace strata::train {

// What the tokens of a pass are trained on.
struct LossInputs {
  std::span<const int32_t> targets;        // [M]
  std::span<const int64_t> first_targets;  // [T + 1] where each row's targets begin; empty: M = T
  // Weights [M], the others [T]; these may be empty where no loss reads them.
  api::ByLossInput<std::span<const float>> columns = {};
  std::span<const api::Loss> losses;  // one for each sequence of the pass
  bool score_all = false;             // logprobs also where every weight of the row is zero

  [[nodiscard]] std::span<const float> weights() const { return columns[api::LossInput::kWeights]; }
};

class LossPass {
 public:
  // Writes logprobs and losses [M], zero in rows that are not scored. With a non-empty d_hidden [T,
  // D] f32 also the gradient of the summed loss, and accumulates the head's. With non-empty
  // `top_logprobs` [T] also the largest logprob of each row that is scored.
  void run(model::Pass& pass, const LossInputs& inputs, TensorView hidden,
           std::span<float> logprobs, std::span<float> losses, TensorView d_hidden,
           std::span<float> top_logprobs = {});

 private:
  // The targets of a row, in the flat arrays.
  struct Range {
    size_t begin, end;
  };
  [[nodiscard]] static Range targets_of(const LossInputs& inputs, size_t row);
  void sequence_values(model::Pass& pass, const LossInputs& inputs, TensorView hidden,
                       std::span<float> logprobs);
  TensorView score(model::Pass& pass, const LossInputs& inputs, std::span<const int32_t> rows,
                   TensorView x, TensorView h, TensorView lse, std::span<float> logprobs);
  void chunk(model::Pass& pass, const LossInputs& inputs, std::span<const int32_t> rows,
             TensorView hidden, std::span<float> logprobs, std::span<float> losses,
             TensorView d_hidden);
  void give_top(model::Pass& pass, std::span<const int32_t> rows, TensorView lse);
  void losses_of_row(const LossInputs& inputs, size_t i, size_t row,
                     std::span<const float> logprobs, std::span<float> losses);
  void add_further_targets(Backend& backend, const LossInputs& inputs,
                           std::span<const int32_t> rows, std::span<const float> logprobs,
                           TensorView d_logits);

  model::RowChunks chunks_;
  std::vector<uint8_t> selected_;
  std::vector<int32_t> row_sequences_;  // [T] the row's sequence
  std::vector<float> sequence_values_;  // of each sequence, where its formula has one
  std::vector<int32_t> chunk_targets_;
  // Of all targets of a chunk: the row in it, the token and its logprob; then what is written.
  std::vector<int32_t> target_rows_, target_ids_;
  std::vector<float> target_logprobs_, further_values_;
  std::vector<float> chunk_slopes_;   // of each row: the sum over its targets
  std::vector<float> target_slopes_;  // [M]
  std::vector<size_t> order_;
  std::span<float> top_logprobs_;  // of the run
  std::vector<float> lse_;         // of a chunk, for these
};

}  // namespace strata::train
