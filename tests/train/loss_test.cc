// SPDX-License-Identifier: Apache-2.0
#include "train/loss.h"

#include "tests/train/losses/loss_check.h"

namespace strata::train {
namespace {

TEST(Loss, WeightZeroIsExactlyZeroWhateverTheInputs) {
  const float inf = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const api::LossRow& row : api::kLosses) {
    const api::Loss loss = api::default_loss(row.id);
    for (const float x : {inf, -inf, nan}) {
      TokenInputs in = token_inputs(loss, x, 0.0f, x, x);
      in.sequence = x;
      const TokenLoss got = token_loss(in);
      EXPECT_EQ(got.loss, 0.0f) << row.name;
      EXPECT_EQ(got.d_logprob, 0.0f) << row.name;
    }
  }
}

// On policy the ratio is exactly 1, so nothing is clipped and the policy gradient is exact.
TEST(Loss, OnPolicyRatioIsOne) {
  for (const api::LossRow& row : api::kLosses) {
    if (row.id == api::LossName::kCrossEntropy || row.of_pairs) continue;
    const api::Loss loss = api::default_loss(row.id);
    TokenInputs in = token_inputs(loss, -3.25f, 1.0f, -3.25f, 2.0f);
    in.sequence = 1.0f;
    EXPECT_EQ(token_loss(in).d_logprob, -2.0f) << row.name;
  }
}

TEST(Loss, RowsAreFoundByName) {
  for (const api::LossRow& row : api::kLosses)
    EXPECT_EQ(api::find_loss(row.name), row.of_pairs ? nullptr : &row);
  EXPECT_EQ(api::find_loss("PPO"), nullptr);
  EXPECT_EQ(api::option_index(api::row_of(api::LossName::kPpo), "clip_high_threshold"), 1u);
  EXPECT_FALSE(api::option_index(api::row_of(api::LossName::kPpo), "beta").has_value());
  EXPECT_FLOAT_EQ(api::default_loss(api::LossName::kGspo).options[0], 0.9997f);
}

}  // namespace
}  // namespace strata::train
