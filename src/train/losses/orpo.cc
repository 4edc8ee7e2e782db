// SPDX-License-Identifier: Apache-2.0
// ORPO (arXiv 2403.07691), as TRL 1.16's experimental ORPOTrainer computes it: with p of an answer
// the mean logprob of its targets, and its log odds o = p - log(1 - exp(p)), a pair's loss is
//   -beta log sigmoid(o of chosen - o of rejected)
// and each target of the chosen answer and of its prompt has besides -a lp, a its advantage: what
// its negative log-likelihood weighs. In double, rounded once.
#include <algorithm>
#include <cmath>

#include "train/loss.h"

namespace strata::train {
namespace {

// Answers that are likelier than exp of it, which fp32 cannot tell from certain ones, count as
// this: their odds stay finite.
constexpr double kMostMean = -1e-7;

double mean_logprob(const PairSide& side) {
  return std::min(static_cast<double>(side.logprob) / static_cast<double>(side.num_targets),
                  kMostMean);
}

double log_odds(double mean) { return mean - std::log(-std::expm1(mean)); }
// The slope of the log odds by the sum of an answer's logprobs.
double log_odds_slope(double mean, const PairSide& side) {
  return -1.0 / std::expm1(mean) / static_cast<double>(side.num_targets);
}

PairLoss odds_ratio_loss(const api::Loss& loss, const PairSide& chosen, const PairSide& rejected) {
  const auto beta = static_cast<double>(loss.options[0]);
  const double p = mean_logprob(chosen), q = mean_logprob(rejected);
  const double x = log_odds(p) - log_odds(q);
  const double value = x > 0 ? std::log1p(std::exp(-x)) : std::log1p(std::exp(x)) - x;
  const double slope = -beta / (1.0 + std::exp(x));
  return {static_cast<float>(beta * value), static_cast<float>(slope * log_odds_slope(p, chosen)),
          static_cast<float>(-slope * log_odds_slope(q, rejected))};
}

TokenLoss token_of_pair(const TokenInputs& in) {
  const float own = in[api::LossInput::kAdvantages];
  const bool is_of_answer = in[api::LossInput::kSequenceRatioMask] != 0.0f;
  return {-own * in.logprob, (is_of_answer ? in.weight * in.sequence : 0.0f) - own};
}

}  // namespace

template <>
LossFormula loss_formula<api::LossName::kOrpo>() {
  return {.token = token_of_pair, .pair = odds_ratio_loss};
}

}  // namespace strata::train
