// SPDX-License-Identifier: Apache-2.0
// -w min(r A, clip(r, lo, hi) A)
#include <cmath>

#include "train/losses/clipped.h"

namespace strata::train {

template <>
LossFormula loss_formula<api::LossName::kPpo>() {
  using enum api::LossInput;
  return {.token = [](const TokenInputs& in) -> TokenLoss {
    constexpr size_t kLow = option_of(api::LossName::kPpo, "clip_low_threshold");
    constexpr size_t kHigh = option_of(api::LossName::kPpo, "clip_high_threshold");
    return clipped_loss(std::exp(in.logprob - in[kLogprobs]), in.loss.options[kLow],
                        in.loss.options[kHigh], in.weight, in[kAdvantages]);
  }};
}

}  // namespace strata::train
