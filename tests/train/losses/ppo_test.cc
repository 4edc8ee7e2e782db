// SPDX-License-Identifier: Apache-2.0
#include "tests/train/losses/loss_check.h"

namespace strata::train {
namespace {

TEST(Ppo, IsItsDefinition) {
  const api::Loss loss = loss_with(api::LossName::kPpo, {0.75f, 1.25f});
  expect_definition(loss, [](const Definition& d) {
    const double r = std::exp(d.p - d.q);
    return -d.w * std::min(r * d.a, std::clamp(r, 0.75, 1.25) * d.a);
  });
}

}  // namespace
}  // namespace strata::train
