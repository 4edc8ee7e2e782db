#include "tests/train/losses/loss_check.h"

namespace strata::train {
namespace {

TEST(Reinforce, IsItsDefinition) {
  const api::Loss loss = loss_with(api::LossName::kReinforce, {});
  expect_definition(loss, [](const Definition& d) { return -d.w * d.a * d.p; });
}

// Where the ratio is 1, a step of importance sampling is the same step.
TEST(Reinforce, HasTheSlopeOfImportanceSamplingOnPolicy) {
  const api::Loss plain = loss_with(api::LossName::kReinforce, {});
  const api::Loss ratio = loss_with(api::LossName::kImportanceSampling, {});
  for (const float p : {-0.25f, -3.0f}) {
    EXPECT_EQ(token_loss(token_inputs(plain, p, 0.5f, p, 1.5f)).d_logprob,
              token_loss(token_inputs(ratio, p, 0.5f, p, 1.5f)).d_logprob);
  }
}

}  // namespace
}  // namespace strata::train
