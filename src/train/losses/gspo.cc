// SPDX-License-Identifier: Apache-2.0
// -w min(s_t A, clip(s_t, lo, hi) A), s_t = s exp(lp - stopgrad(lp)), where s is one ratio for the
// sequence: exp of the mean of lp - q over its masked tokens (GSPO-token, arXiv 2507.18071).
#include <cmath>

#include "train/losses/clipped.h"

namespace strata::train {
namespace {

using enum api::LossInput;

// The mean is a double, tokens ascending, rounded once.
float sequence_ratio(const SequenceInputs& in) {
  const std::span<const float> mask = in.columns[kSequenceRatioMask];
  const std::span<const float> sampled = in.columns[kLogprobs];
  double sum = 0.0, weight = 0.0;
  for (size_t i = 0; i < in.logprobs.size(); ++i) {
    if (mask[i] == 0.0f) continue;
    const double gap = static_cast<double>(in.logprobs[i]) - static_cast<double>(sampled[i]);
    sum += static_cast<double>(mask[i]) * gap;
    weight += static_cast<double>(mask[i]);
  }
  return static_cast<float>(std::exp(sum / weight));
}

TokenLoss gspo_token_loss(const TokenInputs& in) {
  constexpr size_t kLow = option_of(api::LossName::kGspo, "clip_low_threshold");
  constexpr size_t kHigh = option_of(api::LossName::kGspo, "clip_high_threshold");
  return clipped_loss(in.sequence, in.loss.options[kLow], in.loss.options[kHigh], in.weight,
                      in[kAdvantages]);
}

}  // namespace

template <>
LossFormula loss_formula<api::LossName::kGspo>() {
  return {.token = gspo_token_loss, .sequence = sequence_ratio};
}

}  // namespace strata::train
