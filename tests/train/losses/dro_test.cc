// SPDX-License-Identifier: Apache-2.0
#include "tests/train/losses/loss_check.h"

namespace strata::train {
namespace {

TEST(Dro, IsItsDefinition) {
  const api::Loss loss = loss_with(api::LossName::kDro, {0.0625f});
  expect_definition(loss, [](const Definition& d) {
    return -d.w * (d.p * d.a - 0.5 * 0.0625 * (d.p - d.q) * (d.p - d.q));
  });
}

}  // namespace
}  // namespace strata::train
