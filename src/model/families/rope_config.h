// SPDX-License-Identifier: Apache-2.0
// Rotary position embedding as a config describes it: its scaling and its frequencies. Source: HF
// modeling_rope_utils.py.
#pragma once
#include <cstdint>
#include <optional>
#include <vector>

namespace strata::model {

enum class RopeType { kDefault, kLinear, kLlama3, kYarn, kLongrope, kProportional };

struct RopeConfig {
  RopeType type = RopeType::kDefault;
  double theta = 10000.0;
  double factor = 1.0;                             // of all but kDefault
  double low_freq_factor = 1.0;                    // llama3
  double high_freq_factor = 4.0;                   // llama3
  double original_max_position_embeddings = 8192;  // llama3, yarn, longrope
  double beta_fast = 32.0;                         // yarn, like all below
  double beta_slow = 1.0;
  bool truncate = true;         // the ramp's ends to whole pairs
  double mscale = 0.0;          // 0: not given
  double mscale_all_dim = 0.0;  // 0: not given
  // The factor of cos and sin, longrope's too; nothing: yarn's two above say it, longrope's factor.
  std::optional<double> attention_factor = {};
  double partial_rotary_factor = 1.0;  // columns of a head that are rotated, of all
  // kProportional turns the first pairs of the whole head, partial_rotary_factor of them, by the
  // frequencies of the whole head, and the others by 0.
  // Divisors of longrope's frequencies, one for each pair. A run has one of the two tables,
  // whatever the length of a sequence: a key that is kept would turn otherwise once its sequence
  // grows.
  std::vector<double> short_factors = {};
  std::vector<double> long_factors = {};
  bool uses_long_factors = false;  // by plan_positions() (model/config.h)

  // The positions that the table is for; nothing: as many as the model's.
  [[nodiscard]] std::optional<int64_t> most_positions() const;
  friend bool operator==(const RopeConfig&, const RopeConfig&) = default;
};

// What queries at position p are multiplied by besides, so that scores stay sharp in long texts:
// 1 + beta ln(1 + floor((p + offset) / length)). Sources: HF modeling_ministral3.py,
// get_llama_4_attn_scale (offset 0); modeling_llama4.py, Llama4TextAttention (1).
struct PositionScale {
  double beta = 0.0;  // 0: nothing
  double length = 1.0;
  double offset = 0.0;

  [[nodiscard]] double at(int64_t position) const;
  friend bool operator==(const PositionScale&, const PositionScale&) = default;
};

// One rotary table of a model: of dim / 2 pairs.
struct RopeSpec {
  RopeConfig config;
  int64_t dim = 0;
  PositionScale position_scale = {};  // of cos and sin, so of all that is rotated
  friend bool operator==(const RopeSpec&, const RopeSpec&) = default;
};

// Frequencies of the dim / 2 rotary pairs, in double, and what cos and sin are multiplied by.
std::vector<double> rope_frequencies(const RopeConfig& rope, int64_t dim);
double rope_attention_factor(const RopeConfig& rope);
// YaRN's magnitude: 1 where nothing is stretched.
double yarn_mscale(double factor, double mscale);

}  // namespace strata::model
