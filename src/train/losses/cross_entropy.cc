// SPDX-License-Identifier: Apache-2.0
// -w lp
#include "train/loss.h"

namespace strata::train {

template <>
LossFormula loss_formula<api::LossName::kCrossEntropy>() {
  return {.token = [](const TokenInputs& in) -> TokenLoss {
    return {-in.weight * in.logprob, -in.weight};
  }};
}

}  // namespace strata::train
