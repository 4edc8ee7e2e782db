// SPDX-License-Identifier: Apache-2.0
// The types of tensors in GGUF files, and their values as ggml defines them. Elements lie in blocks
// along a row; all numbers are little-endian.
// Source: ggml's ggml-common.h (layouts) and ggml-quants.c (dequantize_row_*).
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace strata {

// The values of `count` blocks; the place of the first block whose scale is no finite number, or
// -1. Products are exact in f32; the one rounding is where a minimum is subtracted or added.
using GgufDequantise = int64_t (*)(const std::byte* blocks, int64_t count, float* out);

struct GgufType {
  uint32_t id;
  std::string_view name;  // "Q4_K"
  int64_t block_elements;
  int64_t block_bytes;
  GgufDequantise dequantise;  // null: its size is known, its values are not read

  [[nodiscard]] bool is_float() const { return name == "F32" || name == "F16" || name == "BF16"; }
};

// The scale of 16 elements of NVFP4 as NarrowScale::kE4m3 has it: e4m3 whose sign does not count,
// and 0 for 0x7f. Its value is that of the bits of e4m3, 480 of all of them.
uint8_t gguf_nvfp4_scale(uint8_t stored);
// Dequantises NVFP4, whose tensors may have a scale besides those of blocks, which multiplies: to
// the values of checkpoint/nvfp4.h. Every byte is a scale.
void dequantise_gguf_nvfp4(const std::byte* blocks, int64_t count, float tensor_scale, float* out);

// Null where ggml has no such type, or has one no more.
const GgufType* find_gguf_type(uint32_t id);
// The names of those that can be read, with commas.
std::string readable_gguf_types();

}  // namespace strata
