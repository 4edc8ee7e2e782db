// SPDX-License-Identifier: Apache-2.0
#include "tests/train/losses/loss_check.h"

namespace strata::train {
namespace {

TEST(StableReinforce, IsItsDefinition) {
  const api::Loss loss = loss_with(api::LossName::kStableReinforce, {0.25f});
  expect_definition(loss, [](const Definition& d) {
    return d.w * (-std::min(std::exp(d.f - d.q), 2.0) * d.a * d.p +
                  0.5 * 0.25 * (d.p - d.q) * (d.p - d.q));
  });
}

// Beyond a ratio of 2 the pull is bounded; outside its mask nothing happens.
TEST(StableReinforce, IsBoundedAndMasked) {
  const api::Loss loss = loss_with(api::LossName::kStableReinforce, {0.0f});
  TokenInputs far = token_inputs(loss, -1.0f, 1.0f, -9.0f, 1.5f);
  EXPECT_EQ(token_loss(far).d_logprob, -3.0f);
  far.columns[api::LossInput::kRecordedMask] = 0.0f;
  EXPECT_EQ(token_loss(far).d_logprob, 0.0f);
  EXPECT_EQ(token_loss(far).loss, 0.0f);
}

}  // namespace
}  // namespace strata::train
