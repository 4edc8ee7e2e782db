// SPDX-License-Identifier: Apache-2.0
#include "tests/train/losses/loss_check.h"

namespace strata::train {
namespace {

TEST(CrossEntropy, IsItsDefinition) {
  const api::Loss loss = loss_with(api::LossName::kCrossEntropy, {});
  expect_definition(loss, [](const Definition& d) { return -d.w * d.p; });
}

}  // namespace
}  // namespace strata::train
