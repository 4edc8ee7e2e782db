// SPDX-License-Identifier: Apache-2.0
// Source: llama.cpp's convert_hf_to_gguf.py, LlamaModel.generate_extra_tensors.
#include "checkpoint/gguf/llama3_scaling.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numbers>

namespace strata {
namespace {

// One divisor, in the converter's arithmetic: f32 but for the constants.
float llama3_divisor(const Llama3Scaling& s, double theta, int64_t pair, int64_t dim) {
  const float power = static_cast<float>(2 * pair) / static_cast<float>(dim);
  const float frequency = 1.0f / static_cast<float>(std::pow(theta, static_cast<double>(power)));
  const double wavelength = 2.0 * std::numbers::pi / static_cast<double>(frequency);
  if (wavelength < s.original / s.high) return 1.0f;
  if (wavelength > s.original) return static_cast<float>(s.factor);
  const double smooth = (s.original / wavelength - 1.0) / (s.high - 1.0);
  return static_cast<float>(1.0 / ((1.0 - smooth) / s.factor + smooth));
}

bool reproduces(const Llama3Scaling& s, std::span<const float> divisors, double theta) {
  const auto dim = std::ssize(divisors) * 2;
  for (int64_t pair = 0; pair < dim / 2; ++pair) {
    const float got = divisors[static_cast<size_t>(pair)];
    const float want = llama3_divisor(s, theta, pair, dim);
    constexpr float kRounding = 1e-5f;
    if (!(std::fabs(got - want) <= kRounding * want)) return false;
  }
  return true;
}

// `s` has the factor and the usual length.
std::optional<Llama3Scaling> find_scaling_without_middle(Llama3Scaling s,
                                                         std::span<const float> divisors,
                                                         double theta) {
  constexpr double kLongest = 1 << 24;
  s.high = 1.0;
  if (reproduces(s, divisors, theta)) return s;
  for (s.original = 1.0; s.original <= kLongest; s.original *= 2.0) {
    if (reproduces(s, divisors, theta)) return s;
  }
  return std::nullopt;
}

}  // namespace

std::optional<Llama3Scaling> find_llama3_scaling(std::span<const float> divisors, double theta) {
  if (divisors.empty() || !(theta > 0.0)) return std::nullopt;
  Llama3Scaling s;
  s.factor = static_cast<double>(*std::max_element(divisors.begin(), divisors.end()));
  if (reproduces(s, divisors, theta)) return s;
  if (const auto sharp = find_scaling_without_middle(s, divisors, theta)) return sharp;
  // Between the ends 1 / divisor is linear in 1 / wavelength: one such point gives the original
  // length.
  const auto dim = static_cast<double>(divisors.size() * 2);
  for (size_t pair = 0; pair < divisors.size(); ++pair) {
    const auto divisor = static_cast<double>(divisors[pair]);
    if (!(divisor > 1.0) || divisor >= s.factor) continue;
    const double smooth = (1.0 / divisor - 1.0 / s.factor) / (1.0 - 1.0 / s.factor);
    const double wavelength =
        2.0 * std::numbers::pi * std::pow(theta, static_cast<double>(2 * pair) / dim);
    for (const double high : {4.0, 2.0, 8.0, 3.0, 16.0, 32.0}) {
      s.high = high;
      s.original = std::round(wavelength * (smooth * (high - 1.0) + 1.0));
      if (reproduces(s, divisors, theta)) return s;
    }
  }
  return std::nullopt;
}

std::vector<float> llama3_divisors(const Llama3Scaling& scaling, double theta, int64_t num_pairs) {
  std::vector<float> divisors;
  for (int64_t pair = 0; pair < num_pairs; ++pair) {
    divisors.push_back(llama3_divisor(scaling, theta, pair, 2 * num_pairs));
  }
  return divisors;
}

}  // namespace strata
