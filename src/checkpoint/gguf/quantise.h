// SPDX-License-Identifier: Apache-2.0
// Values of f32 as blocks of a type, to the bit what ggml's reference makes of them (ggml-quants.c,
// quantize_row_*_ref) and gguf-py does.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "checkpoint/gguf/types.h"

namespace strata {

// Writes `count` blocks; values has as many elements as they hold.
using GgufQuantise = void (*)(const float* values, int64_t count, std::byte* blocks);

// A type that can be written.
struct GgufEncoding {
  const GgufType* type = nullptr;
  GgufQuantise quantise = nullptr;
  uint32_t file_type = 0;  // general.file_type of a file that is mostly of it
};

// By the name in lower case ("q8_0"), or null.
const GgufEncoding* find_gguf_encoding(std::string_view name);

}  // namespace strata
