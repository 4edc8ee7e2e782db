// -w A lp: what importance_sampling is where the sampler is the model itself (Williams 1992).
#include "train/loss.h"

namespace strata::train {

template <>
LossFormula loss_formula<api::LossName::kReinforce>() {
  using enum api::LossInput;
  return {.token = [](const TokenInputs& in) -> TokenLoss {
    const float slope = -in.weight * in[kAdvantages];
    return {slope * in.logprob, slope};
  }};
}

}  // namespace strata::train
