// SPDX-License-Identifier: Apache-2.0
// Exhaustive over the 65,536 patterns of each two-byte type; narrowing against exact arithmetic in
// double.
#include "tensor/dtype.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace strata {
namespace {

// The value of a pattern with `mantissa_bits` below an exponent of `exponent_bits`, computed in
// double from the definition of the format.
double value_of(uint32_t bits, int exponent_bits, int mantissa_bits) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const auto mantissa = static_cast<double>(bits & ((1u << mantissa_bits) - 1));
  const int exponent = static_cast<int>(bits >> mantissa_bits & ((1u << exponent_bits) - 1));
  const double sign = (bits >> (exponent_bits + mantissa_bits)) != 0 ? -1.0 : 1.0;
  if (exponent == (1 << exponent_bits) - 1) {
    return mantissa != 0 ? std::numeric_limits<double>::quiet_NaN()
                         : sign * std::numeric_limits<double>::infinity();
  }
  if (exponent == 0) return sign * std::ldexp(mantissa, 1 - bias - mantissa_bits);
  return sign * std::ldexp(mantissa + (1 << mantissa_bits), exponent - bias - mantissa_bits);
}

TEST(Bf16, EveryPatternWidensToItsValueAndBack) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float wide = to_float(Bf16{static_cast<uint16_t>(bits)});
    const double wanted = value_of(bits, 8, 7);
    if (std::isnan(wanted)) {
      EXPECT_TRUE(std::isnan(wide)) << bits;
      EXPECT_TRUE(std::isnan(to_float(to_bf16(wide)))) << bits;
    } else {
      EXPECT_EQ(static_cast<double>(wide), wanted) << bits;
      EXPECT_EQ(to_bf16(wide).bits, bits);
    }
  }
}

TEST(F16, EveryPatternWidensToItsValueAndBack) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float wide = f16_to_float(static_cast<uint16_t>(bits));
    const double wanted = value_of(bits, 5, 10);
    if (std::isnan(wanted)) {
      EXPECT_TRUE(std::isnan(wide)) << bits;
      EXPECT_TRUE(std::isnan(f16_to_float(float_to_f16(wide)))) << bits;
    } else {
      EXPECT_EQ(static_cast<double>(wide), wanted) << bits;
      EXPECT_EQ(float_to_f16(wide), bits);
      EXPECT_EQ(std::signbit(wide), bits >= 0x8000) << bits;
    }
  }
}

// The nearest pattern to a non-negative finite value, ties to the even one, by comparing with both
// neighbours; `infinity` counts as the next power of two, as IEEE 754 rounds.
uint32_t nearest(double value, uint32_t infinity, int exponent_bits, int mantissa_bits) {
  uint32_t low = 0;
  uint32_t high = infinity;
  while (high - low > 1) {
    const uint32_t middle = (low + high) / 2;
    (value_of(middle, exponent_bits, mantissa_bits) <= value ? low : high) = middle;
  }
  const double below = value_of(low, exponent_bits, mantissa_bits);
  const double above = high == infinity ? std::ldexp(1.0, 1 << (exponent_bits - 1))
                                        : value_of(high, exponent_bits, mantissa_bits);
  const double to_below = value - below;
  const double to_above = above - value;
  if (to_below != to_above) return to_below < to_above ? low : high;
  return low % 2 == 0 ? low : high;
}

void expect_narrowing(uint32_t bits) {
  const float value = std::bit_cast<float>(bits);
  const float magnitude = std::fabs(value);
  const uint32_t sign = bits >> 31 << 15;
  if (std::isnan(value)) return;
  const bool infinite = std::isinf(value);
  const uint32_t bf16 = infinite ? 0x7f80 : nearest(magnitude, 0x7f80, 8, 7);
  const uint32_t f16 = infinite || magnitude > 1e6f ? 0x7c00 : nearest(magnitude, 0x7c00, 5, 10);
  ASSERT_EQ(to_bf16(value).bits, sign | bf16) << std::hex << bits;
  ASSERT_EQ(float_to_f16(value), sign | f16) << std::hex << bits;
}

TEST(Narrowing, RoundsToNearestEvenEverywhere) {
  for (uint64_t bits = 0; bits < (uint64_t{1} << 32); bits += 4'001)
    expect_narrowing(static_cast<uint32_t>(bits));
}

TEST(Narrowing, RoundsTiesAndTheirNeighbours) {
  for (uint32_t high = 0; high < 0x10000; ++high) {
    for (const uint32_t low : {0x7fffu, 0x8000u, 0x8001u})
      expect_narrowing(high << 16 | low);  // bf16
  }
  for (uint32_t high = 0; high < 0x80000; high += 3) {
    for (const uint32_t low : {0xfffu, 0x1000u, 0x1001u})
      expect_narrowing(high << 13 | low);  // f16
  }
}

// Where f16 is subnormal, its ties are not at bit 12: halfway between any two neighbours instead.
TEST(Narrowing, RoundsF16SubnormalTies) {
  for (uint32_t bits = 0; bits < 0x400; ++bits) {
    const auto tie = static_cast<float>((bits + 0.5) * 0x1.0p-24);
    expect_narrowing(std::bit_cast<uint32_t>(tie));
    expect_narrowing(std::bit_cast<uint32_t>(std::nextafter(tie, 0.0f)));
    expect_narrowing(std::bit_cast<uint32_t>(std::nextafter(tie, 1.0f)));
  }
}

TEST(Narrowing, NanStaysNan) {
  for (uint32_t bits = 0x7f800001; bits < 0x80000000; bits += 1'009) {
    for (const uint32_t signed_bits : {bits, bits | 0x80000000u}) {
      const float value = std::bit_cast<float>(signed_bits);
      ASSERT_TRUE(std::isnan(round_to_bf16(value))) << std::hex << signed_bits;
      ASSERT_TRUE(std::isnan(f16_to_float(float_to_f16(value)))) << std::hex << signed_bits;
    }
  }
}

TEST(DType, NamesAndSizes) {
  EXPECT_EQ(dtype_name(DType::kF32), "F32");
  EXPECT_EQ(dtype_name(DType::kBF16), "BF16");
  EXPECT_EQ(dtype_name(DType::kF16), "F16");
  EXPECT_EQ(dtype_bytes(DType::kF32), 4);
  EXPECT_EQ(dtype_bytes(DType::kBF16), 2);
  EXPECT_EQ(dtype_bytes(DType::kF16), 2);
}

}  // namespace
}  // namespace strata
