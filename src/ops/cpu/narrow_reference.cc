// SPDX-License-Identifier: Apache-2.0
#include <bit>
#include <cmath>
#include <cstring>

#include "ops/cpu/narrow_impl.h"
#include "tensor/dtype.h"

namespace strata::ops::cpu {
namespace {

struct Path {
  static constexpr int64_t kCount = 1;
  static constexpr int64_t kTimes = 1;
  struct Values {
    const float* table;
    explicit Values(const float* of) : table(of) {}
  };
  static float half(const uint8_t* p) {
    return f16_to_float(static_cast<uint16_t>(p[0] | p[1] << 8));
  }
  static float i8(const uint8_t* p) { return static_cast<int8_t>(*p); }
  static float u8(const uint8_t* p) { return *p; }
  static float f32(const uint8_t* p) {
    float value;
    std::memcpy(&value, p, sizeof(value));
    return value;
  }
  // 2^(e - 128), half of what E8M0 says; subnormal where e is below 2.
  static float half_e8m0(const uint8_t* p) {
    const uint32_t e = *p;
    return std::bit_cast<float>(e < 2 ? 0x200000u << e : (e - 1) << 23);
  }
  // Without a sign, / 256.
  static float e4m3(const uint8_t* p) { return f16_to_float(narrow_e4m3_half(*p & 0x7f)); }
  static float mul(float a, float b) { return a * b; }
  static float fma(float a, float b, float c) { return std::fma(a, b, c); }
  static float negative(float a) { return -a; }
  static void store_scale(float* dst, float value) { *dst = value; }

  // With a minimum the product is exact: multiply and add round like one fma.
  template <bool kMin>
  static uint16_t value(float code, int64_t lane, const float* s, const float* m) {
    const float product = code * s[lane];
    return to_bf16(kMin ? product + m[lane] : product).bits;
  }
  template <NarrowCodes kCodes, bool kMin>
  static void unpack_bytes(const uint8_t* codes, int64_t count, int64_t width, const float* s,
                           const float* m, uint16_t* dst) {
    for (int64_t i = 0; i < count; ++i) {
      const float code = kCodes == NarrowCodes::kInt8 ? static_cast<int8_t>(codes[i])
                                                      : f16_to_float(narrow_e4m3_half(codes[i]));
      dst[i] = value<kMin>(code, i / 2 % width, s, m);
    }
  }
  template <bool kMin>
  static void unpack_nibbles(const uint8_t* codes, int64_t count, int64_t width,
                             const Values& values, const float* s, const float* m, uint16_t* dst) {
    for (int64_t i = 0; i < count; ++i) {
      const NarrowNibble at = narrow_nibble(i, width);
      dst[i] = value<kMin>(values.table[codes[at.byte] >> at.shift & 15], i / 2 % width, s, m);
    }
  }
};

}  // namespace

void narrow_unpack_reference(const NarrowArgs& args) { unpack_groups<Path>(args); }

}  // namespace strata::ops::cpu
