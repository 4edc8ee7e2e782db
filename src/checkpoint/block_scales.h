// SPDX-License-Identifier: Apache-2.0
// Weights stored in few bits with one scale for each block: value = element * scale, rounded to
// f32.
//   FP8: e4m3, blocks of config.json's weight_block_size, or 128 x 128 (DeepSeek-V3, Qwen3-FP8);
//   blocks at the ends are smaller. One scale may be a whole row's (fbgemm_fp8) or the tensor's.
//   FP4: e2m1, blocks of 1 x 32 (DeepSeek-V4's experts); as F4, or as bytes (I8, U8) of two
//   elements, of which the low four bits are the first. gpt-oss has an axis for the blocks of a
//   row, "X_blocks" [..., columns / 32, 16], with exponents "X_scales" [..., columns / 32].
// The scales of tensor "X" are "X_scale_inv" or "X_scale", those of "Y.weight" also "Y.scale": of
// [rows / block, columns / block], F32, F16, BF16 or powers of two (F8_E8M0). Scales of activations
// next to them ("Y.input_scale", "Y.activation_scale" ..) are no part of the weights. Formats: OCP
// Microscaling Formats 1.0: e4m3 has 1 sign, 4 exponent bits of bias 7, 3 mantissa bits, no
// infinity, NaN at 0x7f and 0xff; e2m1 1, 2 of bias 1, 1, no infinity, no NaN; e8m0 is 2^(bits -
// 127), NaN at 0xff.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/safetensors.h"
#include "tensor/narrow.h"

namespace strata {

float e4m3_to_float(uint8_t bits);
float e2m1_to_float(uint8_t bits);  // of the low four
float e8m0_to_float(uint8_t bits);

// How the elements of a tensor lie in its blocks, were scales to be found.
struct BlockFormat {
  int64_t block_rows = 0;
  int64_t block_cols = 0;
  int elements_per_byte = 1;
  std::vector<int64_t> dims = {};  // of the elements
};
// Nothing when no such format has the tensor's dtype and number of axes.
std::optional<BlockFormat> block_format(const TensorInfo& stored);

// Rows and columns of a block of FP8, of a config.json that says so.
std::optional<std::array<int64_t, 2>> parse_config_block_size(const std::string& config_text,
                                                              const std::string& where);

// What a tensor is called once it has its scales: "X" of "X_blocks".
std::string name_with_scales(const TensorInfo& weight);

// Under which names the scales of a tensor may be, and those of what it multiplies.
std::vector<std::string> scale_names(const TensorInfo& weight);
std::vector<std::string> activation_scale_names(std::string_view tensor);
// Whether it is one of queries, keys or values of a cache in few bits, wherever attention has it.
bool is_cache_scale(std::string_view tensor);

// What is wrong with `scale` as the scales of `weight`, or nothing: then the format's blocks are
// those of the scales.
std::string fit_format(const TensorInfo& weight, const TensorInfo& scale, BlockFormat& format);

// Reads elements [first, first + count) of the weight, in row-major order, times their scales, in
// f32. The scale has no fault.
void read_dequantised(const SafetensorsFile& weights, const TensorInfo& weight,
                      const BlockFormat& format, const SafetensorsFile& scales,
                      const TensorInfo& scale, int64_t first, int64_t count, float* out);

// The form that such a weight may be kept in, kNone for none; the first scale or, where asked for,
// code that it does not hold, or nothing; and rows of the weight in it, an Error where there is
// such a one.
NarrowForm scaled_narrow_form(const BlockFormat& format, const TensorInfo& scale);
std::string scan_scaled_for_unrepresentable_values(const SafetensorsFile& weights,
                                                   const TensorInfo& weight,
                                                   const BlockFormat& format,
                                                   const SafetensorsFile& scales,
                                                   const TensorInfo& scale, bool codes);
void read_quantised_rows_of_scaled(const SafetensorsFile& weights, const TensorInfo& weight,
                                   const BlockFormat& format, const SafetensorsFile& scales,
                                   const TensorInfo& scale, int64_t first_row, int64_t count,
                                   std::byte* out);

}  // namespace strata
