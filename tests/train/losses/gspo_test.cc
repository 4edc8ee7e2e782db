// SPDX-License-Identifier: Apache-2.0
#include "tests/train/losses/loss_check.h"

namespace strata::train {
namespace {

TEST(Gspo, IsItsDefinition) {
  const api::Loss loss = loss_with(api::LossName::kGspo, {0.75f, 1.25f});
  expect_definition(loss, [](const Definition& d) {
    const double s = d.s * std::exp(d.p - d.f);
    return -d.w * std::min(s * d.a, std::clamp(s, 0.75, 1.25) * d.a);
  });
}

// One ratio for the sequence: exp of the mean gap over the mask, whose weights count.
TEST(Gspo, TheRatioIsOfTheMaskedTokens) {
  const api::Loss loss = api::default_loss(api::LossName::kGspo);
  const std::vector<float> p = {-1.0f, -2.0f, -3.0f}, q = {-1.5f, 9.0f, -3.25f};
  const std::vector<float> mask = {1.0f, 0.0f, 3.0f};
  SequenceInputs in = {.loss = loss, .logprobs = p};
  in.columns[api::LossInput::kLogprobs] = q;
  in.columns[api::LossInput::kSequenceRatioMask] = mask;
  EXPECT_FLOAT_EQ(sequence_value(in), std::exp((0.5f + 3.0f * 0.25f) / 4.0f));
}

}  // namespace
}  // namespace strata::train
