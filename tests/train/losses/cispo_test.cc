// SPDX-License-Identifier: Apache-2.0
#include "tests/train/losses/loss_check.h"

namespace strata::train {
namespace {

TEST(Cispo, IsItsDefinition) {
  const api::Loss loss = loss_with(api::LossName::kCispo, {0.75f, 1.25f});
  expect_definition(loss, [](const Definition& d) {
    return -d.w * std::clamp(std::exp(d.f - d.q), 0.75, 1.25) * d.a * d.p;
  });
}

}  // namespace
}  // namespace strata::train
