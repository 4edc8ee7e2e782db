// SPDX-License-Identifier: Apache-2.0
#include "tensor/rounded.h"

#include <gtest/gtest.h>

#include <cmath>

namespace strata {
namespace {

TEST(Rounded, IsTheNearestValueOfTheTypeTiesToEven) {
  const float beyond_bf16 = 1.0f + 0x1p-8f, beyond_f16 = 1.0f + 0x1p-11f;
  EXPECT_EQ(rounded_to(beyond_f16, DType::kF32), beyond_f16);
  EXPECT_EQ(rounded_to(beyond_bf16, DType::kBF16), 1.0f);
  EXPECT_EQ(rounded_to(1.0f + 0x3p-8f, DType::kBF16), 1.0f + 0x1p-6f);
  EXPECT_EQ(rounded_to(beyond_bf16, DType::kF16), beyond_bf16);
  EXPECT_EQ(rounded_to(beyond_f16, DType::kF16), 1.0f);
  EXPECT_EQ(rounded_to(70'000.0f, DType::kF16), INFINITY);
  EXPECT_EQ(rounded_to(70'000.0f, DType::kBF16), 70'144.0f);
}

}  // namespace
}  // namespace strata
