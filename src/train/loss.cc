// SPDX-License-Identifier: Apache-2.0
#include "train/loss.h"

#include <array>
#include <utility>

#include "base/check.h"

namespace strata::train {
namespace {

template <size_t... kIndex>
std::array<LossFormula, sizeof...(kIndex)> all_formulas(std::index_sequence<kIndex...>) {
  return {loss_formula<api::kLosses[kIndex].id>()...};
}

const LossFormula& formula_of(const api::Loss& loss) {
  static const auto kFormulas = all_formulas(std::make_index_sequence<api::kNumLosses>());
  return kFormulas[static_cast<size_t>(loss.name)];
}

}  // namespace

TokenLoss token_loss(const TokenInputs& in) {
  if (in.weight == 0.0f) return {};
  return formula_of(in.loss).token(in);
}

float sequence_value(const SequenceInputs& in) {
  const LossFormula& formula = formula_of(in.loss);
  CHECK(formula.sequence != nullptr, static_cast<int>(in.loss.name));
  return formula.sequence(in);
}

PairLoss pair_loss(const api::Loss& loss, const PairSide& chosen, const PairSide& rejected) {
  const LossFormula& formula = formula_of(loss);
  CHECK(formula.pair != nullptr, static_cast<int>(loss.name));
  return formula.pair(loss, chosen, rejected);
}

}  // namespace strata::train
