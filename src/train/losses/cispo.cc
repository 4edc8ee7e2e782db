// SPDX-License-Identifier: Apache-2.0
// -w stopgrad(clip(r, lo, hi)) A lp
#include <algorithm>
#include <cmath>

#include "train/loss.h"

namespace strata::train {

template <>
LossFormula loss_formula<api::LossName::kCispo>() {
  using enum api::LossInput;
  return {.token = [](const TokenInputs& in) -> TokenLoss {
    constexpr size_t kLow = option_of(api::LossName::kCispo, "clip_low_threshold");
    constexpr size_t kHigh = option_of(api::LossName::kCispo, "clip_high_threshold");
    const float clipped = std::clamp(std::exp(in.logprob - in[kLogprobs]), in.loss.options[kLow],
                                     in.loss.options[kHigh]);
    const float slope = -in.weight * (clipped * in[kAdvantages]);
    return {slope * in.logprob, slope};
  }};
}

}  // namespace strata::train
