// SPDX-License-Identifier: Apache-2.0
// DPO (arXiv 2305.18290) and its kin, as TRL 1.16's DPOTrainer computes them. With d of a side its
// logprob less the reference's, of sigmoid_norm and ipo by target, g is d of chosen less rejected:
// - sigmoid, sigmoid_norm: -log sigmoid(beta g)
// - robust: (-(1 - e) log sigmoid(beta g) + e log sigmoid(-beta g)) / (1 - 2 e), e label_smoothing
// - hinge: max(0, 1 - beta g)
// - ipo: (g - 1 / (2 beta))^2
// In double, rounded once.
#include <cmath>

#include "train/loss.h"

namespace strata::train {
namespace {

// A loss of the gap g, and its derivative.
struct GapLoss {
  double loss, slope;
};

double sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }
// -log sigmoid(x), which does not overflow.
double softplus_of_minus(double x) {
  return x > 0 ? std::log1p(std::exp(-x)) : std::log1p(std::exp(x)) - x;
}
double beta_of(const api::Loss& loss) { return static_cast<double>(loss.options[0]); }

GapLoss sigmoid_loss(const api::Loss& loss, double gap) {
  const double x = beta_of(loss) * gap;
  return {softplus_of_minus(x), -beta_of(loss) * sigmoid(-x)};
}

GapLoss robust_loss(const api::Loss& loss, double gap) {
  constexpr size_t kSmoothing = option_of(api::LossName::kDpoRobust, "label_smoothing");
  const auto e = static_cast<double>(loss.options[kSmoothing]);
  const double x = beta_of(loss) * gap;
  return {((1 - e) * softplus_of_minus(x) - e * softplus_of_minus(-x)) / (1 - 2 * e),
          -beta_of(loss) * ((1 - e) * sigmoid(-x) + e * sigmoid(x)) / (1 - 2 * e)};
}

GapLoss hinge_loss(const api::Loss& loss, double gap) {
  const double left = 1 - beta_of(loss) * gap;
  return left > 0 ? GapLoss{left, -beta_of(loss)} : GapLoss{0, 0};
}

GapLoss ipo_loss(const api::Loss& loss, double gap) {
  const double off = gap - 1 / (2 * beta_of(loss));
  return {off * off, 2 * off};
}

double log_ratio(const PairSide& side) {
  return static_cast<double>(side.logprob) - static_cast<double>(side.reference);
}

template <GapLoss (*kOfGap)(const api::Loss&, double), bool kPerTarget>
PairLoss loss_of_pair(const api::Loss& loss, const PairSide& chosen, const PairSide& rejected) {
  const double share = kPerTarget ? 1 / static_cast<double>(chosen.num_targets) : 1;
  const double of_rejected = kPerTarget ? 1 / static_cast<double>(rejected.num_targets) : 1;
  const GapLoss of = kOfGap(loss, log_ratio(chosen) * share - log_ratio(rejected) * of_rejected);
  return {static_cast<float>(of.loss), static_cast<float>(of.slope * share),
          static_cast<float>(-of.slope * of_rejected)};
}

// w times the pair's slope for this side; the pair's loss stands at one target alone.
TokenLoss token_of_pair(const TokenInputs& in) { return {0.0f, in.weight * in.sequence}; }

}  // namespace

template <>
LossFormula loss_formula<api::LossName::kDpoSigmoid>() {
  return {.token = token_of_pair, .pair = loss_of_pair<sigmoid_loss, false>};
}

template <>
LossFormula loss_formula<api::LossName::kDpoSigmoidNorm>() {
  return {.token = token_of_pair, .pair = loss_of_pair<sigmoid_loss, true>};
}

template <>
LossFormula loss_formula<api::LossName::kDpoRobust>() {
  return {.token = token_of_pair, .pair = loss_of_pair<robust_loss, false>};
}

template <>
LossFormula loss_formula<api::LossName::kDpoHinge>() {
  return {.token = token_of_pair, .pair = loss_of_pair<hinge_loss, false>};
}

template <>
LossFormula loss_formula<api::LossName::kDpoIpo>() {
  return {.token = token_of_pair, .pair = loss_of_pair<ipo_loss, true>};
}

}  // namespace strata::train
