// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/gguf/types.h"

#include <bit>
#include <cmath>
#include <cstring>

#include "tensor/dtype.h"
#include "tensor/narrow.h"

namespace strata {
namespace {

constexpr float kIq4[] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

// A block's bytes by place.
class Block {
 public:
  explicit Block(const std::byte* bytes) : bytes_(bytes) {}
  [[nodiscard]] int u8(int64_t at) const { return static_cast<int>(bytes_[at]); }
  [[nodiscard]] int i8(int64_t at) const { return static_cast<int8_t>(bytes_[at]); }
  [[nodiscard]] uint16_t u16(int64_t at) const {
    return static_cast<uint16_t>(u8(at) | u8(at + 1) << 8);
  }
  [[nodiscard]] uint32_t u32(int64_t at) const {
    return u16(at) | static_cast<uint32_t>(u16(at + 2)) << 16;
  }
  [[nodiscard]] float f16(int64_t at) const { return f16_to_float(u16(at)); }
  // The code of one of 32 elements in 16 bytes: the low halves are the first 16.
  [[nodiscard]] int nibble(int64_t at, int i) const {
    return i < 16 ? u8(at + i) & 15 : u8(at + i - 16) >> 4;
  }

 private:
  const std::byte* bytes_;
};

// Has `dequantise(block, values)`, which says whether the scales are finite, do one block after the
// other up to the first whose are not, whose place it returns, or -1.
template <int kElements, int kBytes, typename Dequantise>
int64_t dequantise_until_fault(const std::byte* blocks, int64_t count, float* out,
                               Dequantise dequantise) {
  for (int64_t i = 0; i < count; ++i) {
    if (!dequantise(Block(blocks + i * kBytes), out + i * kElements)) return i;
  }
  return -1;
}

int64_t dequantise_f32(const std::byte* blocks, int64_t count, float* out) {
  std::memcpy(out, blocks, static_cast<size_t>(count) * sizeof(float));
  return -1;
}

int64_t dequantise_f16(const std::byte* blocks, int64_t count, float* out) {
  for (int64_t i = 0; i < count; ++i) out[i] = Block(blocks + 2 * i).f16(0);
  return -1;
}

int64_t dequantise_bf16(const std::byte* blocks, int64_t count, float* out) {
  for (int64_t i = 0; i < count; ++i) out[i] = to_float(Bf16{Block(blocks + 2 * i).u16(0)});
  return -1;
}

int64_t dequantise_q8_0(const std::byte* blocks, int64_t count, float* out) {
  return dequantise_until_fault<32, 34>(blocks, count, out, [](Block b, float* y) {
    const float d = b.f16(0);
    for (int i = 0; i < 32; ++i) y[i] = d * static_cast<float>(b.i8(2 + i));
    return std::isfinite(d);
  });
}

// Q4_0, Q4_1, Q5_0, Q5_1: a scale, with kMin a minimum, with kFive the fifth bits, then the codes.
template <bool kFive, bool kMin>
int64_t dequantise_q4_q5(const std::byte* blocks, int64_t count, float* out) {
  constexpr int kHigh = kMin ? 4 : 2;
  constexpr int kCodes = kHigh + (kFive ? 4 : 0);
  return dequantise_until_fault<32, kCodes + 16>(blocks, count, out, [](Block b, float* y) {
    const float d = b.f16(0);
    const float m = kMin ? b.f16(2) : 0.0f;
    const uint32_t high = kFive ? b.u32(kHigh) : 0;
    for (int i = 0; i < 32; ++i) {
      const int code = b.nibble(kCodes, i) | static_cast<int>(high >> i & 1) << 4;
      y[i] =
          kMin ? d * static_cast<float>(code) + m : d * static_cast<float>(code - (kFive ? 16 : 8));
    }
    return std::isfinite(d) && std::isfinite(m);
  });
}

int64_t dequantise_iq4_nl(const std::byte* blocks, int64_t count, float* out) {
  return dequantise_until_fault<32, 18>(blocks, count, out, [](Block b, float* y) {
    const float d = b.f16(0);
    for (int i = 0; i < 32; ++i) y[i] = d * kIq4[b.nibble(2, i)];
    return std::isfinite(d);
  });
}

// Twice the values of e2m1: the scale is half of what the exponent says.
constexpr float kTwiceE2m1[] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

int64_t dequantise_mxfp4(const std::byte* blocks, int64_t count, float* out) {
  return dequantise_until_fault<32, 17>(blocks, count, out, [](Block b, float* y) {
    const int exponent = b.u8(0);
    const float d = std::ldexp(1.0f, exponent - 128);
    bool finite = exponent != 255;
    for (int i = 0; i < 32; ++i) {
      y[i] = d * kTwiceE2m1[b.nibble(1, i)];
      finite = finite && std::isfinite(y[i]);
    }
    return finite;
  });
}

// A block: the scales of four groups of 16, then their codes, a group's first 8 in low halves.
int64_t dequantise_nvfp4(const std::byte* blocks, int64_t count, float* out) {
  dequantise_gguf_nvfp4(blocks, count, 1.0f, out);
  return -1;
}

// The six-bit scale and minimum of one of eight groups.
struct ScaleMin {
  int scale, min;
};
ScaleMin scale_min(Block b, int64_t at, int g) {
  const auto x = [&](int i) { return b.u8(at + i); };
  if (g < 4) return {x(g) & 63, x(g + 4) & 63};
  return {(x(g + 4) & 15) | (x(g - 4) >> 6) << 4, (x(g + 4) >> 4) | (x(g) >> 6) << 4};
}

// Q4_K and Q5_K, which has fifth bits before the codes.
template <bool kFive>
int64_t dequantise_q4_q5_k(const std::byte* blocks, int64_t count, float* out) {
  constexpr int kCodes = kFive ? 48 : 16;
  return dequantise_until_fault<256, kCodes + 128>(blocks, count, out, [](Block b, float* y) {
    const float d = b.f16(0);
    const float dmin = b.f16(2);
    for (int i = 0; i < 256; ++i) {
      const int g = i / 32;
      const ScaleMin s = scale_min(b, 4, g);
      const int byte = b.u8(kCodes + 32 * (g / 2) + i % 32);
      const int high = kFive ? b.u8(16 + i % 32) >> g & 1 : 0;
      const int code = (g % 2 == 0 ? byte & 15 : byte >> 4) | high << 4;
      y[i] = d * static_cast<float>(s.scale) * static_cast<float>(code) -
             dmin * static_cast<float>(s.min);
    }
    return std::isfinite(d) && std::isfinite(dmin);
  });
}

int64_t dequantise_q6_k(const std::byte* blocks, int64_t count, float* out) {
  return dequantise_until_fault<256, 210>(blocks, count, out, [](Block b, float* y) {
    const float d = b.f16(208);
    for (int i = 0; i < 256; ++i) {
      const int half = i / 128;
      const int part = i % 128 / 32;
      const int l = i % 32;
      const int low = b.u8(64 * half + l + 32 * (part % 2));
      const int high = b.u8(128 + 32 * half + l) >> (2 * part) & 3;
      const int code = (part < 2 ? low & 15 : low >> 4) | high << 4;
      y[i] = d * static_cast<float>(b.i8(192 + i / 16)) * static_cast<float>(code - 32);
    }
    return std::isfinite(d);
  });
}

int64_t dequantise_q2_k(const std::byte* blocks, int64_t count, float* out) {
  return dequantise_until_fault<256, 84>(blocks, count, out, [](Block b, float* y) {
    const float d = b.f16(80);
    const float dmin = b.f16(82);
    for (int i = 0; i < 256; ++i) {
      const int scale = b.u8(i / 16);
      const int code = b.u8(16 + 32 * (i / 128) + i % 32) >> (2 * (i % 128 / 32)) & 3;
      y[i] = d * static_cast<float>(scale & 15) * static_cast<float>(code) -
             dmin * static_cast<float>(scale >> 4);
    }
    return std::isfinite(d) && std::isfinite(dmin);
  });
}

int64_t dequantise_q3_k(const std::byte* blocks, int64_t count, float* out) {
  return dequantise_until_fault<256, 110>(blocks, count, out, [](Block b, float* y) {
    const float d = b.f16(108);
    for (int i = 0; i < 256; ++i) {
      const int g = i / 16;
      const int low = g < 8 ? b.u8(96 + g) & 15 : b.u8(96 + g - 8) >> 4;
      const int scale = (low | (b.u8(104 + g % 4) >> (2 * (g / 4)) & 3) << 4) - 32;
      const int part = i % 128 / 32;
      const int bits = b.u8(32 + 32 * (i / 128) + i % 32) >> (2 * part) & 3;
      const bool high = (b.u8(i % 32) >> (4 * (i / 128) + part) & 1) != 0;
      y[i] = d * static_cast<float>(scale) * static_cast<float>(bits - (high ? 0 : 4));
    }
    return std::isfinite(d);
  });
}

int64_t dequantise_iq4_xs(const std::byte* blocks, int64_t count, float* out) {
  return dequantise_until_fault<256, 136>(blocks, count, out, [](Block b, float* y) {
    const float d = b.f16(0);
    const int high = b.u16(2);
    for (int g = 0; g < 8; ++g) {
      const int low = g % 2 == 0 ? b.u8(4 + g / 2) & 15 : b.u8(4 + g / 2) >> 4;
      const int scale = (low | (high >> (2 * g) & 3) << 4) - 32;
      for (int i = 0; i < 32; ++i) {
        y[32 * g + i] = d * static_cast<float>(scale) * kIq4[b.nibble(8 + 16 * g, i)];
      }
    }
    return std::isfinite(d);
  });
}

constexpr GgufType kTypes[] = {
    {0, "F32", 1, 4, dequantise_f32},
    {1, "F16", 1, 2, dequantise_f16},
    {2, "Q4_0", 32, 18, dequantise_q4_q5<false, false>},
    {3, "Q4_1", 32, 20, dequantise_q4_q5<false, true>},
    {6, "Q5_0", 32, 22, dequantise_q4_q5<true, false>},
    {7, "Q5_1", 32, 24, dequantise_q4_q5<true, true>},
    {8, "Q8_0", 32, 34, dequantise_q8_0},
    {9, "Q8_1", 32, 40, nullptr},
    {10, "Q2_K", 256, 84, dequantise_q2_k},
    {11, "Q3_K", 256, 110, dequantise_q3_k},
    {12, "Q4_K", 256, 144, dequantise_q4_q5_k<false>},
    {13, "Q5_K", 256, 176, dequantise_q4_q5_k<true>},
    {14, "Q6_K", 256, 210, dequantise_q6_k},
    {15, "Q8_K", 256, 292, nullptr},
    {16, "IQ2_XXS", 256, 66, nullptr},
    {17, "IQ2_XS", 256, 74, nullptr},
    {18, "IQ3_XXS", 256, 98, nullptr},
    {19, "IQ1_S", 256, 50, nullptr},
    {20, "IQ4_NL", 32, 18, dequantise_iq4_nl},
    {21, "IQ3_S", 256, 110, nullptr},
    {22, "IQ2_S", 256, 82, nullptr},
    {23, "IQ4_XS", 256, 136, dequantise_iq4_xs},
    {24, "I8", 1, 1, nullptr},
    {25, "I16", 1, 2, nullptr},
    {26, "I32", 1, 4, nullptr},
    {27, "I64", 1, 8, nullptr},
    {28, "F64", 1, 8, nullptr},
    {29, "IQ1_M", 256, 56, nullptr},
    {30, "BF16", 1, 2, dequantise_bf16},
    {34, "TQ1_0", 256, 54, nullptr},
    {35, "TQ2_0", 256, 66, nullptr},
    {39, "MXFP4", 32, 17, dequantise_mxfp4},
    {40, "NVFP4", 64, 36, dequantise_nvfp4},
    {41, "Q1_0", 128, 18, nullptr},
};

}  // namespace

uint8_t gguf_nvfp4_scale(uint8_t stored) { return stored == 0x7f ? 0 : stored & 0x7f; }

void dequantise_gguf_nvfp4(const std::byte* blocks, int64_t count, float tensor_scale, float* out) {
  constexpr int kBytes = 36, kGroups = 4, kGroup = 16;
  for (int64_t i = 0; i < count * kGroups; ++i, out += kGroup) {
    const Block b(blocks + i / kGroups * kBytes);
    const auto g = static_cast<int>(i % kGroups);
    const uint8_t bits = gguf_nvfp4_scale(static_cast<uint8_t>(b.u8(g)));
    const float scale = 256.0f * f16_to_float(narrow_e4m3_half(bits)) * tensor_scale;
    for (int j = 0; j < kGroup; ++j) {
      const int byte = b.u8(kGroups + kGroup / 2 * g + j % 8);
      out[j] = 0.5f * kTwiceE2m1[j < 8 ? byte & 15 : byte >> 4] * scale;
    }
  }
}

const GgufType* find_gguf_type(uint32_t id) {
  for (const GgufType& type : kTypes) {
    if (type.id == id) return &type;
  }
  return nullptr;
}

std::string readable_gguf_types() {
  std::string names;
  for (const GgufType& type : kTypes) {
    if (type.dequantise == nullptr) continue;
    names += names.empty() ? "" : ", ";
    names += type.name;
  }
  return names;
}

}  // namespace strata
