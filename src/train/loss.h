// SPDX-License-Identifier: Apache-2.0
// The loss of one token, as Tinker defines it: a sum, never a mean. Each formula is a file of
// train/losses/, with lp the target's logprob, w its weight, q the sampler's logprob, A the
// advantage and r = exp(lp - q), all fp32. Where w is 0 the loss and its derivative are exactly 0,
// whatever the other inputs hold.
#pragma once
#include <span>

#include "api/losses.h"

namespace strata::train {

// What a formula reads of one token.
struct TokenInputs {
  const api::Loss& loss;
  float logprob = 0.0f;
  float weight = 1.0f;
  api::ByLossInput<float> columns = {};  // but weights
  float sequence = 1.0f;  // what the formula made of the whole sequence, or of the pair for it

  [[nodiscard]] float operator[](api::LossInput input) const { return columns[input]; }
};

struct TokenLoss {
  float loss = 0.0f;
  float d_logprob = 0.0f;  // derivative of the loss by lp
};

// What a formula reads of a sequence before its tokens; logprobs where mean_over is not 0.
struct SequenceInputs {
  const api::Loss& loss;
  std::span<const float> logprobs;                        // [N]
  api::ByLossInput<std::span<const float>> columns = {};  // [N]
};

// One answer of a pair: the sums of logprobs over its targets whose weight is not 0, and by a loss
// that reads the sequence's mask over those of them that it has.
struct PairSide {
  float logprob = 0.0f;
  float reference = 0.0f;  // by the reference model
  int64_t num_targets = 0;
};

struct PairLoss {
  float loss = 0.0f;
  float d_chosen = 0.0f;  // derivatives of the loss by each side's logprob
  float d_rejected = 0.0f;
};

struct LossFormula {
  TokenLoss (*token)(const TokenInputs& in);              // w is not 0
  float (*sequence)(const SequenceInputs& in) = nullptr;  // of rows with mean_over
  // Rows of pairs have it; a side's derivative is what `token` reads as its sequence's value.
  PairLoss (*pair)(const api::Loss& loss, const PairSide& chosen,
                   const PairSide& rejected) = nullptr;
};

// Specialised in train/losses/<name>.cc for each row of api/losses.h: a row without a formula does
// not link.
template <api::LossName kName>
LossFormula loss_formula();

TokenLoss token_loss(const TokenInputs& in);
float sequence_value(const SequenceInputs& in);
PairLoss pair_loss(const api::Loss& loss, const PairSide& chosen, const PairSide& rejected);

// The position of an option in Loss::options, for formulas; a name that the row lacks does not
// compile.
consteval size_t option_of(api::LossName loss, std::string_view option) {
  return api::option_index(api::row_of(loss), option).value();
}

}  // namespace strata::train
