// SPDX-License-Identifier: Apache-2.0
// w (-stopgrad(min(r, 2)) A lp + kl_coeff/2 (lp - q)^2) where the mask is not 0. The formula is
// Strata's own: the service does not publish its one.
#include <algorithm>
#include <cmath>

#include "train/loss.h"

namespace strata::train {

template <>
LossFormula loss_formula<api::LossName::kStableReinforce>() {
  using enum api::LossInput;
  return {.token = [](const TokenInputs& in) -> TokenLoss {
    constexpr float kMaxRatio = 2.0f;
    const float kl_coeff = in.loss.options[option_of(api::LossName::kStableReinforce, "kl_coeff")];
    if (in[kRecordedMask] == 0.0f) return {};
    const float gap = in.logprob - in[kLogprobs];
    const float pull = std::min(std::exp(gap), kMaxRatio) * in[kAdvantages];
    return {in.weight * (-pull * in.logprob + 0.5f * kl_coeff * (gap * gap)),
            in.weight * (-pull + kl_coeff * gap)};
  }};
}

}  // namespace strata::train
