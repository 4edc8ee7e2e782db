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

// Null where ggml has no such type, or has one no more.
const GgufType* find_gguf_type(uint32_t id);
// The names of those that can be read, with commas.
std::string readable_gguf_types();

}  // namespace strata
