// SPDX-License-Identifier: Apache-2.0
// -w r A
#include <cmath>

#include "train/loss.h"

namespace strata::train {

template <>
LossFormula loss_formula<api::LossName::kImportanceSampling>() {
  using enum api::LossInput;
  return {.token = [](const TokenInputs& in) -> TokenLoss {
    // d r / d lp = r
    const float loss = -in.weight * (std::exp(in.logprob - in[kLogprobs]) * in[kAdvantages]);
    return {loss, loss};
  }};
}

}  // namespace strata::train
