// LossPass: from the final hidden states of a pass to logprobs, losses and the gradient of the
// hidden states, in chunks of rows; all logits never exist at once and rows of weight zero never
// reach the head. T tokens, D model width, V vocabulary. Engine thread only; reuses its buffers.
#pragma once
#include <span>
#include <vector>

#include "model/head.h"
#include "train/loss.h"

namespace strata::train {

// What the tokens of a pass are trained on; spans are [T]. The last two may be empty where no loss
// reads them.
struct LossInputs {
  std::span<const int32_t> targets;
  std::span<const float> weights;
  std::span<const float> sampling_logprobs;
  std::span<const float> advantages;
  std::span<const LossSpec> specs;  // one for each sequence of the pass
};

class LossPass {
 public:
  // Writes logprobs and losses [T], zero where the weight is zero. With a non-empty d_hidden [T, D]
  // f32 also the gradient of the summed loss, and accumulates the head's.
  void run(model::Pass& pass, const LossInputs& inputs, TensorView hidden,
           std::span<float> logprobs, std::span<float> losses, TensorView d_hidden);

 private:
  void chunk(model::Pass& pass, const LossInputs& inputs, std::span<const int32_t> rows,
             TensorView hidden, std::span<float> logprobs, std::span<float> losses,
             TensorView d_hidden);

  model::RowChunks chunks_;
  std::vector<uint8_t> selected_;
  std::vector<LossSpec> row_specs_;
  std::vector<int32_t> chunk_targets_;
  std::vector<float> chunk_logprobs_;
  std::vector<float> chunk_slopes_;
};

}  // namespace strata::train
