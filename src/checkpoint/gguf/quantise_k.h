// SPDX-License-Identifier: Apache-2.0
// Values of f32 as K-quants: blocks of 256 whose parts have scales (and minima) of 6 or 8 bits
// themselves. To the bit what ggml's reference makes of finite values (ggml-quants.c,
// quantize_row_q4_K_ref and its like), without weights of importance.
#pragma once
#include <cstddef>
#include <cstdint>

namespace strata {

// Each writes `count` blocks of 256 values, as GgufQuantise says.
void quantise_q4_k(const float* values, int64_t count, std::byte* blocks);
void quantise_q5_k(const float* values, int64_t count, std::byte* blocks);
void quantise_q6_k(const float* values, int64_t count, std::byte* blocks);

}  // namespace strata
