// SPDX-License-Identifier: Apache-2.0
// How bitsandbytes makes nf4: the elements of a tensor, in their flat order, are divided into
// blocks of 64. The scale of a block is the largest absolute value in it, and each element becomes
// the code whose value times the scale is nearest. Source of the form: bitsandbytes functional.py
// (quantize_4bit, create_normal_map).
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

namespace strata {

constexpr int64_t kNf4Block = 64;  // elements; a tensor's last block may have fewer

// The values of the codes 0 to 15, ascending.
std::span<const float, 16> nf4_values();
// The scale of a block: its largest absolute value; not finite where one of them is not.
float nf4_scale(std::span<const float> block);
// The codes of a block's elements, one a byte. Elements are finite, and there are kNf4Block of them
// at most.
void quantise_to_nf4(std::span<const float> block, float scale, std::span<std::byte> codes);

}  // namespace strata
