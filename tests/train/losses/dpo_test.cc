// SPDX-License-Identifier: Apache-2.0
// Losses of pairs against their definitions in double: values to 8 roundings of fp32, slopes
// against a central difference.
#include <functional>

#include "tests/train/losses/loss_check.h"

namespace strata::train {
namespace {

constexpr double kBeta = 0.25, kSmoothing = 0.125;

double log_sigmoid(double x) { return -std::log1p(std::exp(-x)); }

struct PairDefinition {
  api::LossName name;
  bool per_target;
  double (*of_gap)(double gap);
};

const PairDefinition kDefinitions[] = {
    {api::LossName::kDpoSigmoid, false, [](double g) { return -log_sigmoid(kBeta * g); }},
    {api::LossName::kDpoSigmoidNorm, true, [](double g) { return -log_sigmoid(kBeta * g); }},
    {api::LossName::kDpoRobust, false,
     [](double g) {
       return (-(1 - kSmoothing) * log_sigmoid(kBeta * g) + kSmoothing * log_sigmoid(-kBeta * g)) /
              (1 - 2 * kSmoothing);
     }},
    {api::LossName::kDpoHinge, false, [](double g) { return std::max(0.0, 1 - kBeta * g); }},
    {api::LossName::kDpoIpo, true,
     [](double g) { return (g - 1 / (2 * kBeta)) * (g - 1 / (2 * kBeta)); }},
};

TEST(Dpo, IsItsDefinition) {
  for (const PairDefinition& row : kDefinitions) {
    const api::Loss loss = loss_with(row.name, {kBeta, kSmoothing});
    for (const float chosen : {-40.0f, -12.5f, -9.0f}) {
      for (const float rejected : {-31.0f, -10.75f, -2.0f}) {
        const PairSide a = {.logprob = chosen, .reference = -11.0f, .num_targets = 5};
        const PairSide b = {.logprob = rejected, .reference = -9.5f, .num_targets = 3};
        const auto at = [&](double c, double r) {
          const double n = row.per_target ? 5.0 : 1.0, m = row.per_target ? 3.0 : 1.0;
          return row.of_gap((c + 11.0) / n - (r + 9.5) / m);
        };
        const PairLoss got = pair_loss(loss, a, b);
        const double c = chosen, r = rejected, step = 1e-5;
        EXPECT_NEAR(got.loss, at(c, r), 1e-6 * std::max(1.0, std::fabs(at(c, r))));
        const double by_chosen = (at(c + step, r) - at(c - step, r)) / (2 * step);
        const double by_rejected = (at(c, r + step) - at(c, r - step)) / (2 * step);
        EXPECT_NEAR(got.d_chosen, by_chosen, 1e-5 * std::max(1.0, std::fabs(by_chosen)));
        EXPECT_NEAR(got.d_rejected, by_rejected, 1e-5 * std::max(1.0, std::fabs(by_rejected)));
      }
    }
  }
}

// A model that is its reference: no gap, log 2, and slopes that are beta / 2 of each side.
TEST(Dpo, OfItsReferenceIsLogTwo) {
  const api::Loss loss = api::default_loss(api::LossName::kDpoSigmoid);
  const PairLoss got = pair_loss(loss, {-7.0f, -7.0f, 4}, {-9.0f, -9.0f, 4});
  EXPECT_FLOAT_EQ(got.loss, std::log(2.0f));
  EXPECT_FLOAT_EQ(got.d_chosen, -0.05f);
  EXPECT_FLOAT_EQ(got.d_rejected, 0.05f);
}

// Sums of long answers are in the thousands.
TEST(Dpo, LargeGapsStayFinite) {
  for (const PairDefinition& row : kDefinitions) {
    const api::Loss loss = loss_with(row.name, {kBeta, kSmoothing});
    for (const float gap : {-1e6f, 1e6f}) {
      const PairLoss got = pair_loss(loss, {gap, 0.0f, 1}, {0.0f, 0.0f, 1});
      EXPECT_TRUE(std::isfinite(got.loss) && std::isfinite(got.d_chosen));
    }
  }
}

}  // namespace
}  // namespace strata::train
