// SPDX-License-Identifier: Apache-2.0
#include "tests/train/losses/loss_check.h"

namespace strata::train {
namespace {

TEST(ImportanceSampling, IsItsDefinition) {
  const api::Loss loss = loss_with(api::LossName::kImportanceSampling, {});
  expect_definition(loss, [](const Definition& d) { return -d.w * std::exp(d.p - d.q) * d.a; });
}

}  // namespace
}  // namespace strata::train
