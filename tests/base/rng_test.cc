// SPDX-License-Identifier: Apache-2.0
#include "base/rng.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string_view>
#include <vector>

namespace strata {
namespace {

using Words = std::array<uint32_t, 4>;

// The three philox4x32-10 vectors of Random123's known-answer file. Its counter words are index
// low, index high, stream low, stream high here, its key words seed low, seed high.
TEST(Philox, KnownAnswers) {
  EXPECT_EQ((Counter{0, 0}.words(0)), (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  constexpr uint64_t kOnes = ~uint64_t{0};
  EXPECT_EQ((Counter{kOnes, kOnes}.words(kOnes)),
            (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ((Counter{0x299f31d0a4093822, 0x0370734413198a2e}.words(0x85a308d3243f6a88)),
            (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Philox, EveryPartOfTheKeyMatters) {
  const Words base = Counter{1, 2}.words(3);
  for (int bit = 0; bit < 64; ++bit) {
    const uint64_t flip = uint64_t{1} << bit;
    EXPECT_NE((Counter{1 ^ flip, 2}.words(3)), base);
    EXPECT_NE((Counter{1, 2 ^ flip}.words(3)), base);
    EXPECT_NE((Counter{1, 2}.words(3 ^ flip)), base);
  }
}

// Largest distance between the empirical distribution and `cdf`. With n = 20,000 a true sample
// exceeds 1.95 / sqrt(n) once in a thousand; the draws are fixed, so the test is not flaky.
template <typename Cdf>
double kolmogorov(std::vector<double> values, Cdf cdf) {
  std::sort(values.begin(), values.end());
  double worst = 0;
  const auto n = static_cast<double>(values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    const double p = cdf(values[i]);
    worst = std::max({worst, p - static_cast<double>(i) / n, static_cast<double>(i + 1) / n - p});
  }
  return worst * std::sqrt(n);
}

TEST(Uniform, IsUniformIn01) {
  std::vector<double> values;
  for (uint64_t i = 0; i < 20'000; ++i) {
    values.push_back(Counter{7, 11}.uniform(i));
    ASSERT_GE(values.back(), 0.0);
    ASSERT_LT(values.back(), 1.0);
  }
  EXPECT_LT(kolmogorov(values, [](double x) { return x; }), 1.95);
}

TEST(Normal, IsStandardNormal) {
  std::vector<double> values;
  for (uint64_t i = 0; i < 20'000; ++i) values.push_back(Counter{7, 11}.normal(i));
  EXPECT_LT(kolmogorov(values, [](double x) { return 0.5 * std::erfc(-x / std::sqrt(2.0)); }),
            1.95);
}

// Vectors of the FNV authors' test suite.
TEST(HashName, IsFnv1a) {
  const auto hash = [](std::string_view text) { return hash_name(text.data(), text.size()); };
  EXPECT_EQ(hash(""), 0xcbf29ce484222325u);
  EXPECT_EQ(hash("a"), 0xaf63dc4c8601ec8cu);
  EXPECT_EQ(hash("foobar"), 0x85944171f73967e8u);
}

}  // namespace
}  // namespace strata
