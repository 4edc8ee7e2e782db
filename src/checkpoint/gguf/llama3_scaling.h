// SPDX-License-Identifier: Apache-2.0
// The settings of Llama 3's rotary scaling, from the table of divisors that GGUF files have in
// their place.
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace strata {

// A table knows the three lengths and factors of a config only up to one number: low_freq_factor is
// 1, as in all files.
struct Llama3Scaling {
  double factor = 1.0, high = 4.0, original = 8192.0;
};

// Those that give the table, of one divisor for each pair, to rounding; nothing where none do. Of a
// table without a middle (Llama 4's, where both factors are 1) the original length is 8192 or the
// least power of two that gives it.
std::optional<Llama3Scaling> find_llama3_scaling(std::span<const float> divisors, double theta);

// The table of a model with so many pairs.
std::vector<float> llama3_divisors(const Llama3Scaling& scaling, double theta, int64_t num_pairs);

}  // namespace strata
