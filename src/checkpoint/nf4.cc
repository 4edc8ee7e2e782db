// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/nf4.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "tensor/narrow.h"

namespace strata {
namespace {

constexpr std::byte kZero{7};  // the code whose value is 0

// Of codes `code` and `code + 1`; the lower one where both are as near.
bool is_nearer_to_next(float value, size_t code) {
  const auto values = nf4_values();
  return std::fabs(value - values[code + 1]) < std::fabs(value - values[code]);
}

using Thresholds = std::array<float, 15>;

// Of each code but the last the largest number that it is still the nearest to.
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

float nf4_scale(std::span<const float> block) {
  float largest = 0.0f;
  for (const float value : block) largest = std::max(largest, std::fabs(value));
  return largest;
}

void quantise_to_nf4(std::span<const float> block, float scale, std::span<std::byte> codes) {
  if (scale == 0.0f) {
    std::fill_n(codes.begin(), block.size(), kZero);
    return;
  }
  static const Thresholds kThresholds = make_thresholds();
  const Thresholds thresholds = kThresholds;  // which no byte written below may alias
  std::array<int32_t, kNf4Block> found = {};
  for (size_t i = 0; i < block.size(); ++i) {
    const float value = block[i] / scale;
    for (const float threshold : thresholds) found[i] += value > threshold ? 1 : 0;
  }
  for (size_t i = 0; i < block.size(); ++i) codes[i] = static_cast<std::byte>(found[i]);
}

}  // namespace strata
