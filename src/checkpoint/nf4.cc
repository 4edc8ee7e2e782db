// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/nf4.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>

#include "tensor/narrow.h"

namespace strata {
namespace {

constexpr std::byte kZero{7};  // the code whose value is 0

// Whether `code + 1` is nearer to the value than `code`, which counts where both are as near.
bool is_nearer_to_next(float value, size_t code) {
  const auto values = nf4_values();
  return std::fabs(value - values[code + 1]) < std::fabs(value - values[code]);
}

using Thresholds = std::array<float, 15>;

// For each code but the last, the largest number that it is still the nearest to.
Thresholds make_thresholds() {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const auto values = nf4_values();
  Thresholds thresholds;
  for (size_t code = 0; code < thresholds.size(); ++code) {
    float at = values[code] + (values[code + 1] - values[code]) / 2;
    while (is_nearer_to_next(at, code)) at = std::nextafter(at, -kInfinity);
    for (float next = at; !is_nearer_to_next(next, code); next = std::nextafter(next, kInfinity))
      at = next;
    thresholds[code] = at;
  }
  return thresholds;
}

}  // namespace

std::span<const float, 16> nf4_values() {
  return std::span<const float, 16>(narrow_layout(NarrowForm::kNf4).values, 16);
}

// By the bits of absolute values, which ascend as they do; what is no number is above all.
float nf4_scale(std::span<const float> block) {
  uint32_t largest = 0;
  for (const float value : block)
    largest = std::max(largest, std::bit_cast<uint32_t>(value) & 0x7fffffffu);
  return std::bit_cast<float>(largest);
}

void quantise_to_nf4(std::span<const float> block, float scale, std::span<std::byte> codes) {
  if (scale == 0.0f) {
    std::fill_n(codes.begin(), block.size(), kZero);
    return;
  }
  static const Thresholds kThresholds = make_thresholds();
  std::array<float, kNf4Block> quotients = {};
  for (size_t i = 0; i < block.size(); ++i) quotients[i] = block[i] / scale;
  // Over whole blocks, which compilers take in vectors.
  std::array<int32_t, kNf4Block> found = {};
  for (const float threshold : kThresholds) {
    for (size_t i = 0; i < kNf4Block; ++i) found[i] += quotients[i] > threshold ? 1 : 0;
  }
  for (size_t i = 0; i < block.size(); ++i) codes[i] = static_cast<std::byte>(found[i]);
}

}  // namespace strata
