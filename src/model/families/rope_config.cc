// SPDX-License-Identifier: Apache-2.0
// Source: HF modeling_rope_utils.py, _compute_default_rope_parameters,
// _compute_linear_scaling_rope_parameters, _compute_llama3_parameters, _compute_yarn_parameters,
// _compute_longrope_parameters, _compute_proportional_rope_parameters.
#include "model/families/rope_config.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace strata::model {
namespace {

double llama3_frequency(const RopeConfig& rope, double frequency) {
  const double wavelength = 2.0 * std::numbers::pi / frequency;
  const double original = rope.original_max_position_embeddings;
  if (wavelength > original / rope.low_freq_factor) return frequency / rope.factor;
  if (wavelength < original / rope.high_freq_factor) return frequency;
  // Where the two meet nothing is between them.
  if (rope.low_freq_factor == rope.high_freq_factor) return frequency;
  const double smooth = (original / wavelength - rope.low_freq_factor) /
                        (rope.high_freq_factor - rope.low_freq_factor);
  return (1.0 - smooth) * frequency / rope.factor + smooth * frequency;
}

// The pairs between which YaRN goes from the old frequencies to the interpolated ones.
struct Ramp {
  double low;
  double high;

  Ramp(const RopeConfig& rope, int64_t dim) {
    const auto pair_with = [&](double turns) {  // over the original length
      return static_cast<double>(dim) *
             std::log(rope.original_max_position_embeddings / (turns * 2.0 * std::numbers::pi)) /
             (2.0 * std::log(rope.theta));
    };
    low = pair_with(rope.beta_fast);
    high = pair_with(rope.beta_slow);
    if (rope.truncate) {
      low = std::floor(low);
      high = std::ceil(high);
    }
    low = std::max(low, 0.0);
    high = std::min(high, static_cast<double>(dim - 1));
    if (low == high) high += 0.001;
  }
  // 0: the old frequency, 1: interpolated.
  [[nodiscard]] double at(int64_t pair) const {
    return std::clamp((static_cast<double>(pair) - low) / (high - low), 0.0, 1.0);
  }
};

double longrope_frequency(const RopeConfig& rope, int64_t pair, double frequency) {
  const auto& factors = rope.uses_long_factors ? rope.long_factors : rope.short_factors;
  return frequency / factors[static_cast<size_t>(pair)];
}

double proportional_frequency(const RopeConfig& rope, int64_t dim, int64_t pair, double frequency) {
  const double turning = std::floor(rope.partial_rotary_factor * static_cast<double>(dim) / 2.0);
  return static_cast<double>(pair) < turning ? frequency / rope.factor : 0.0;
}

double yarn_frequency(const RopeConfig& rope, int64_t dim, int64_t pair, double frequency) {
  const double ramp = Ramp(rope, dim).at(pair);
  return frequency / rope.factor * ramp + frequency * (1.0 - ramp);
}

}  // namespace

std::optional<int64_t> RopeConfig::most_positions() const {
  if (type != RopeType::kLongrope || uses_long_factors) return std::nullopt;
  return static_cast<int64_t>(original_max_position_embeddings);
}

double PositionScale::at(int64_t position) const {
  if (beta == 0.0) return 1.0;
  return 1.0 + beta * std::log1p(std::floor((static_cast<double>(position) + offset) / length));
}

double yarn_mscale(double factor, double mscale) {
  return factor <= 1.0 ? 1.0 : 0.1 * mscale * std::log(factor) + 1.0;
}

std::vector<double> rope_frequencies(const RopeConfig& rope, int64_t dim) {
  std::vector<double> frequencies(static_cast<size_t>(dim / 2));
  for (int64_t pair = 0; pair < dim / 2; ++pair) {
    const double frequency =
        std::pow(rope.theta, -2.0 * static_cast<double>(pair) / static_cast<double>(dim));
    double& scaled = frequencies[static_cast<size_t>(pair)];
    switch (rope.type) {
      case RopeType::kDefault:
        scaled = frequency;
        break;
      case RopeType::kLinear:
        scaled = frequency / rope.factor;
        break;
      case RopeType::kLlama3:
        scaled = llama3_frequency(rope, frequency);
        break;
      case RopeType::kYarn:
        scaled = yarn_frequency(rope, dim, pair, frequency);
        break;
      case RopeType::kLongrope:
        scaled = longrope_frequency(rope, pair, frequency);
        break;
      case RopeType::kProportional:
        scaled = proportional_frequency(rope, dim, pair, frequency);
        break;
    }
  }
  return frequencies;
}

double rope_attention_factor(const RopeConfig& rope) {
  if (rope.type != RopeType::kYarn && rope.type != RopeType::kLongrope) return 1.0;
  if (rope.attention_factor) return *rope.attention_factor;
  if (rope.type == RopeType::kLongrope) {
    if (rope.factor <= 1.0) return 1.0;
    return std::sqrt(1.0 + std::log(rope.factor) / std::log(rope.original_max_position_embeddings));
  }
  if (rope.mscale != 0.0 && rope.mscale_all_dim != 0.0) {
    return yarn_mscale(rope.factor, rope.mscale) / yarn_mscale(rope.factor, rope.mscale_all_dim);
  }
  return yarn_mscale(rope.factor, 1.0);
}

}  // namespace strata::model
