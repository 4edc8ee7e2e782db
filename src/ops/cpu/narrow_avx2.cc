// SPDX-License-Identifier: Apache-2.0
#if defined(__x86_64__)
#include <immintrin.h>

#include "ops/cpu/narrow_impl.h"
#include "ops/cpu/unroll.h"

namespace strata::ops::cpu {
namespace {

struct Path {
  static constexpr int64_t kCount = 8;
  // Eight values for codes below 8, and eight for the others.
  struct Values {
    __m256 low, high;
    explicit Values(const float* of)
        : low(of != nullptr ? _mm256_load_ps(of) : __m256{}),
          high(of != nullptr ? _mm256_load_ps(of + 8) : __m256{}) {}
  };
  static __m128i load_8(const uint8_t* p) {
    return _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
  }
  static __m256 half(const uint8_t* p) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
  static __m256 i8(const uint8_t* p) { return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(load_8(p))); }
  static __m256 u8(const uint8_t* p) { return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(load_8(p))); }
  static __m256 f32(const uint8_t* p) { return _mm256_loadu_ps(reinterpret_cast<const float*>(p)); }
  template <NarrowCodes kCodes>
  static __m256 code(const uint8_t* p) {
    if constexpr (kCodes == NarrowCodes::kInt8) return i8(p);
    const __m128i halves = _mm_slli_epi16(_mm_cvtepi8_epi16(load_8(p)), 7);  // sign twice
    return _mm256_cvtph_ps(_mm_and_si128(halves, _mm_set1_epi16(static_cast<int16_t>(0xbf80))));
  }
  static __m256 exponent(const uint8_t* p) {
    const __m256i e = _mm256_cvtepu8_epi32(load_8(p));
    const __m256i normal = _mm256_slli_epi32(_mm256_sub_epi32(e, _mm256_set1_epi32(1)), 23);
    const __m256i small = _mm256_sllv_epi32(_mm256_set1_epi32(0x200000), e);
    const __m256i is_small = _mm256_cmpgt_epi32(_mm256_set1_epi32(2), e);
    return _mm256_castsi256_ps(_mm256_blendv_epi8(normal, small, is_small));
  }
  static __m256 mul(__m256 a, __m256 b) { return _mm256_mul_ps(a, b); }
  static __m256 negative(__m256 a) { return _mm256_xor_ps(a, _mm256_set1_ps(-0.0f)); }
  static void store_twice(float* dst, __m256 value) {
    const __m256 low = _mm256_unpacklo_ps(value, value);  // lanes 0 0 1 1, 4 4 5 5
    const __m256 high = _mm256_unpackhi_ps(value, value);
    _mm256_store_ps(dst, _mm256_permute2f128_ps(low, high, 0x20));
    _mm256_store_ps(dst + 8, _mm256_permute2f128_ps(low, high, 0x31));
  }

  // Eight elements, the first of which is the at-th of [width][2], rounded as to_bf16
  // (tensor/dtype.h) rounds numbers, in the lower halves.
  template <bool kMin>
  [[gnu::always_inline]] static __m256i value(__m256 code, int64_t at, const float* s,
                                              const float* m) {
    const __m256 scale = _mm256_load_ps(s + at);
    const __m256 exact =
        kMin ? _mm256_fmadd_ps(code, scale, _mm256_load_ps(m + at)) : _mm256_mul_ps(code, scale);
    const __m256i u = _mm256_castps_si256(exact);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
    return _mm256_srli_epi32(_mm256_add_epi32(_mm256_add_epi32(u, _mm256_set1_epi32(0x7fff)), odd),
                             16);
  }
  [[gnu::always_inline]] static void store(uint16_t* dst, __m256i low, __m256i high) {
    const __m256i mixed = _mm256_packus_epi32(low, high);
    _mm256_store_si256(reinterpret_cast<__m256i*>(dst), _mm256_permute4x64_epi64(mixed, 0xd8));
  }

  template <NarrowCodes kCodes, bool kMin>
  static void bytes(const uint8_t* codes, int64_t count, int64_t width, const float* s,
                    const float* m, uint16_t* dst) {
    const int64_t mask = 2 * width - 1;
    for (int64_t i = 0; i < count; i += 16) {
      const int64_t at = i & mask;
      store(dst + i, value<kMin>(code<kCodes>(codes + i), at, s, m),
            value<kMin>(code<kCodes>(codes + i + 8), at + 8, s, m));
    }
  }

  // vpermps reads the low three bits of an index alone; the fourth, moved to the sign, chooses.
  [[gnu::always_inline]] static __m256 look_up(const Values& values, __m256i code) {
    return _mm256_blendv_ps(_mm256_permutevar8x32_ps(values.low, code),
                            _mm256_permutevar8x32_ps(values.high, code),
                            _mm256_castsi256_ps(_mm256_slli_epi32(code, 28)));
  }
  template <bool kMin>
  static void nibbles(const uint8_t* codes, int64_t count, int64_t width, const Values& values,
                      const float* s, const float* m, uint16_t* dst) {
    const int64_t mask = 2 * width - 1;
    for (int64_t i = 0; i < count; i += 128, codes += 64, dst += 128) {
      const __m256i first = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes));
      const __m256i second = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes + 32));
      unroll<8>([&](auto j) __attribute__((always_inline)) {
        const int64_t at = (16 * j) & mask;
        store(dst + 16 * j, value<kMin>(look_up(values, _mm256_srli_epi32(first, 4 * j)), at, s, m),
              value<kMin>(look_up(values, _mm256_srli_epi32(second, 4 * j)), at + 8, s, m));
      });
    }
  }
};

}  // namespace

void narrow_unpack_avx2(const NarrowArgs& args) { unpack<Path>(args); }

}  // namespace strata::ops::cpu
#endif
