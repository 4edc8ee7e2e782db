// SPDX-License-Identifier: Apache-2.0
// -w (A lp - beta/2 (lp - q)^2)
#include "train/loss.h"

namespace strata::train {

template <>
LossFormula loss_formula<api::LossName::kDro>() {
  using enum api::LossInput;
  return {.token = [](const TokenInputs& in) -> TokenLoss {
    const float beta = in.loss.options[option_of(api::LossName::kDro, "beta")];
    const float gap = in.logprob - in[kLogprobs];
    return {-in.weight * (in.logprob * in[kAdvantages] - 0.5f * beta * (gap * gap)),
            -in.weight * (in[kAdvantages] - beta * gap)};
  }};
}

}  // namespace strata::train
