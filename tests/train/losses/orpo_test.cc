// SPDX-License-Identifier: Apache-2.0
// ORPO's loss against its definition in double: values to 8 roundings of fp32, slopes against a
// central difference.
#include "tests/train/losses/loss_check.h"

namespace strata::train {
namespace {

constexpr double kBeta = 0.25;

double log_odds(double mean) { return mean - std::log(1 - std::exp(mean)); }

double definition(double chosen, double rejected) {
  const double x = log_odds(chosen / 5) - log_odds(rejected / 3);
  return -kBeta * std::log(1 / (1 + std::exp(-x)));
}

TEST(Orpo, IsItsDefinition) {
  const api::Loss loss = loss_with(api::LossName::kOrpo, {kBeta});
  for (const float chosen : {-40.0f, -12.5f, -0.25f}) {
    for (const float rejected : {-31.0f, -0.5f, -2.0f}) {
      // References have no part in it.
      const PairSide a = {.logprob = chosen, .reference = -3.0f, .num_targets = 5};
      const PairSide b = {.logprob = rejected, .reference = -9.5f, .num_targets = 3};
      const PairLoss got = pair_loss(loss, a, b);
      const double c = chosen, r = rejected, step = 1e-5;
      EXPECT_NEAR(got.loss, definition(c, r), 1e-6 * std::max(1.0, definition(c, r)));
      const double by_chosen = (definition(c + step, r) - definition(c - step, r)) / (2 * step);
      const double by_rejected = (definition(c, r + step) - definition(c, r - step)) / (2 * step);
      EXPECT_NEAR(got.d_chosen, by_chosen, 1e-5 * std::max(1.0, std::fabs(by_chosen)));
      EXPECT_NEAR(got.d_rejected, by_rejected, 1e-5 * std::max(1.0, std::fabs(by_rejected)));
    }
  }
}

// A model that knows both answers by heart, whose logprobs are 0 in fp32.
TEST(Orpo, CertainAnswersStayFinite) {
  const api::Loss loss = loss_with(api::LossName::kOrpo, {kBeta});
  for (const float rejected : {0.0f, -1e6f}) {
    const PairLoss got = pair_loss(loss, {0.0f, 0.0f, 4}, {rejected, 0.0f, 4});
    EXPECT_TRUE(std::isfinite(got.loss));
    EXPECT_TRUE(std::isfinite(got.d_chosen) && std::isfinite(got.d_rejected));
  }
}

// A token has its own loss, where its advantage says so, also outside of the answer.
TEST(Orpo, TokensHaveTheirOwnLossToo) {
  const api::Loss loss = loss_with(api::LossName::kOrpo, {kBeta});
  TokenInputs in = {.loss = loss, .logprob = -2.0f, .weight = 0.5f, .sequence = -3.0f};
  in.columns[api::LossInput::kAdvantages] = 0.25f;
  in.columns[api::LossInput::kSequenceRatioMask] = 1.0f;
  EXPECT_EQ(token_loss(in).loss, 0.5f);
  EXPECT_EQ(token_loss(in).d_logprob, -1.5f - 0.25f);
  in.columns[api::LossInput::kSequenceRatioMask] = 0.0f;
  EXPECT_EQ(token_loss(in).d_logprob, -0.25f);
}

}  // namespace
}  // namespace strata::train
