// SPDX-License-Identifier: Apache-2.0
// Element types of tensors and the scalar bf16 and f16 conversions. Rounding is to nearest even.
#pragma once
#include <bit>
#include <cstdint>
#include <string_view>

namespace strata {

enum class DType : uint8_t { kF32, kBF16, kF16 };

constexpr int64_t dtype_bytes(DType dtype) { return dtype == DType::kF32 ? 4 : 2; }
// The name in a safetensors header: "F32", "BF16", "F16".
std::string_view dtype_name(DType dtype);

struct Bf16 {
  uint16_t bits = 0;
};

inline float to_float(Bf16 value) { return std::bit_cast<float>(uint32_t{value.bits} << 16); }

// NaN stays NaN (quiet); everything else rounds to nearest even.
inline Bf16 to_bf16(float value) {
  const uint32_t u = std::bit_cast<uint32_t>(value);
  if ((u & 0x7fffffffu) > 0x7f800000u) return Bf16{static_cast<uint16_t>((u >> 16) | 0x40u)};
  return Bf16{static_cast<uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16)};
}

inline float round_to_bf16(float value) { return to_float(to_bf16(value)); }

float f16_to_float(uint16_t bits);
uint16_t float_to_f16(float value);

}  // namespace strata
