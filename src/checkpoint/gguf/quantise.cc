// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/gguf/quantise.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "checkpoint/gguf/quantise_k.h"
#include "checkpoint/safetensors_writer.h"
#include "tensor/dtype.h"

namespace strata {
namespace {

constexpr int kBlock = 32;

void put_u16(std::byte* to, uint16_t bits) {
  to[0] = static_cast<std::byte>(bits & 255);
  to[1] = static_cast<std::byte>(bits >> 8);
}

void quantise_f32(const float* values, int64_t count, std::byte* blocks) {
  std::memcpy(blocks, values, static_cast<size_t>(count) * sizeof(float));
}

void quantise_f16(const float* values, int64_t count, std::byte* blocks) {
  for (int64_t i = 0; i < count; ++i)
    put_u16(blocks + 2 * i, narrow_to_16_bits(values[i], DType::kF16));
}

void quantise_bf16(const float* values, int64_t count, std::byte* blocks) {
  for (int64_t i = 0; i < count; ++i)
    put_u16(blocks + 2 * i, narrow_to_16_bits(values[i], DType::kBF16));
}

float inverse(float scale) { return scale == 0.0f ? 0.0f : 1.0f / scale; }

float largest_of(const float* values) {
  float largest = 0.0f;
  for (int i = 0; i < kBlock; ++i) largest = std::max(largest, std::fabs(values[i]));
  return largest;
}

// The first of the largest, with its sign.
float signed_largest_of(const float* values) {
  float largest = 0.0f;
  for (int i = 0; i < kBlock; ++i) {
    if (std::fabs(values[i]) > std::fabs(largest)) largest = values[i];
  }
  return largest;
}

void quantise_q8_0(const float* values, int64_t count, std::byte* blocks) {
  constexpr int kBytes = 2 + kBlock;
  for (int64_t b = 0; b < count; ++b, values += kBlock, blocks += kBytes) {
    const float scale = largest_of(values) / 127.0f;
    const float factor = inverse(scale);
    put_u16(blocks, float_to_f16(scale));
    for (int i = 0; i < kBlock; ++i) {
      blocks[2 + i] = static_cast<std::byte>(static_cast<int8_t>(std::round(values[i] * factor)));
    }
  }
}

// Puts 32 codes into 16 bytes: the low halves are the first 16.
template <typename Code>
void put_nibbles(std::byte* to, Code code) {
  for (int i = 0; i < kBlock / 2; ++i) {
    to[i] = static_cast<std::byte>(code(i) | code(i + kBlock / 2) << 4);
  }
}

void quantise_q4_0(const float* values, int64_t count, std::byte* blocks) {
  constexpr int kBytes = 2 + kBlock / 2;
  for (int64_t b = 0; b < count; ++b, values += kBlock, blocks += kBytes) {
    const float scale = signed_largest_of(values) / -8.0f;  // it has the code 0
    const float factor = inverse(scale);
    put_u16(blocks, float_to_f16(scale));
    put_nibbles(blocks + 2, [&](int i) {
      const float shifted = values[i] * factor + 8.5f;
      return std::clamp(static_cast<int>(shifted), 0, 15);
    });
  }
}

// In [0, most]; of NaN 0.
int truncate_to_code(float value, int most) {
  if (!(value > 0.0f)) return 0;
  return value < static_cast<float>(most) ? static_cast<int>(value) : most;
}

// Writes 32 codes of five bits: their fifth bits in four bytes, then the others in sixteen.
template <typename Code>
void put_five_bits(std::byte* to, Code code) {
  uint32_t fifth = 0;
  for (int i = 0; i < kBlock; ++i) fifth |= static_cast<uint32_t>(code(i) >> 4) << i;
  std::memcpy(to, &fifth, sizeof(fifth));
  put_nibbles(to + sizeof(fifth), [&](int i) { return code(i) & 15; });
}

void quantise_q5_0(const float* values, int64_t count, std::byte* blocks) {
  constexpr int kBytes = 2 + 4 + kBlock / 2;
  for (int64_t b = 0; b < count; ++b, values += kBlock, blocks += kBytes) {
    const float scale = signed_largest_of(values) / -16.0f;  // it has the code 0
    const float factor = inverse(scale);
    put_u16(blocks, float_to_f16(scale));
    put_five_bits(blocks + 2, [&](int i) {
      const float shifted = values[i] * factor + 16.5f;
      return truncate_to_code(shifted, 31);
    });
  }
}

void quantise_q5_1(const float* values, int64_t count, std::byte* blocks) {
  constexpr int kBytes = 2 + 2 + 4 + kBlock / 2;
  for (int64_t b = 0; b < count; ++b, values += kBlock, blocks += kBytes) {
    const auto [least, most] = std::minmax_element(values, values + kBlock);
    const float scale = (*most - *least) / 31.0f;
    const float factor = inverse(scale);
    put_u16(blocks, float_to_f16(scale));
    put_u16(blocks + 2, float_to_f16(*least));
    put_five_bits(blocks + 4, [&, minimum = *least](int i) {
      const float shifted = (values[i] - minimum) * factor + 0.5f;
      return truncate_to_code(shifted, 31);
    });
  }
}

constexpr float kTwiceE2m1[] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

int nearest_e2m1(float value, float scale) {
  int best = 0;
  float least = std::fabs(value);
  for (int code = 1; code < 16; ++code) {
    const float error = std::fabs(kTwiceE2m1[code] * scale - value);
    if (error >= least) continue;
    best = code;
    least = error;
  }
  return best;
}

// The exponent that is stored, of a block of this largest value. e2m1 goes to 6, which is below
// 8 = 2^(2 + 1).
int shared_exponent(float largest) {
  const int exponent =
      largest > 0.0f ? static_cast<int>(std::floor(std::log2(largest))) - 2 + 127 : 0;
  return std::clamp(exponent, 0, 254);
}

void quantise_mxfp4(const float* values, int64_t count, std::byte* blocks) {
  constexpr int kBytes = 1 + kBlock / 2;
  for (int64_t b = 0; b < count; ++b, values += kBlock, blocks += kBytes) {
    const int exponent = shared_exponent(largest_of(values));
    const float scale = std::ldexp(1.0f, exponent - 128);  // the codes are held doubled
    blocks[0] = static_cast<std::byte>(exponent);
    put_nibbles(blocks + 1, [&](int i) { return nearest_e2m1(values[i], scale); });
  }
}

struct EncodingRow {
  std::string_view name;
  uint32_t type, file_type;
  GgufQuantise quantise;
};
constexpr EncodingRow kRows[] = {{"f32", 0, 0, quantise_f32},     {"f16", 1, 1, quantise_f16},
                                 {"q4_0", 2, 2, quantise_q4_0},   {"q8_0", 8, 7, quantise_q8_0},
                                 {"bf16", 30, 32, quantise_bf16}, {"mxfp4", 39, 38, quantise_mxfp4},
                                 {"q5_0", 6, 8, quantise_q5_0},   {"q5_1", 7, 9, quantise_q5_1},
                                 {"q4_k", 12, 14, quantise_q4_k}, {"q5_k", 13, 16, quantise_q5_k},
                                 {"q6_k", 14, 18, quantise_q6_k}};

// As kRows.
std::array<GgufEncoding, std::size(kRows)> make_encodings() {
  std::array<GgufEncoding, std::size(kRows)> out;
  for (size_t i = 0; i < out.size(); ++i) {
    out[i] = {find_gguf_type(kRows[i].type), kRows[i].quantise, kRows[i].file_type};
  }
  return out;
}

}  // namespace

const GgufEncoding* find_gguf_encoding(std::string_view name) {
  static const std::array encodings = make_encodings();
  for (size_t i = 0; i < std::size(kRows); ++i) {
    if (kRows[i].name == name) return &encodings[i];
  }
  return nullptr;
}

}  // namespace strata
