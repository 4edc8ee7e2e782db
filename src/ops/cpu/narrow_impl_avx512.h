// SPDX-License-Identifier: Apache-2.0
// What the two AVX-512 files of weights in few bits share, as a template over the rounding of two
// registers to bf16. A file that includes this has its own copy.
#pragma once
#include <immintrin.h>

#include "ops/cpu/narrow_impl.h"
#include "ops/cpu/unroll.h"

namespace strata::ops::cpu {
namespace {

// Round::to_bf16(low, high): 32 elements of bf16.
template <typename Round>
struct NarrowAvx512 {
  static constexpr int64_t kCount = 16;
  static constexpr int64_t kTimes = 2;
  struct Values {
    __m512 table;
    explicit Values(const float* of) : table(of != nullptr ? _mm512_load_ps(of) : __m512{}) {}
  };
  static __m128i load_16(const uint8_t* p) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  }
  static __m512 half(const uint8_t* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  static __m512 i8(const uint8_t* p) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(load_16(p)));
  }
  static __m512 u8(const uint8_t* p) {
    return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(load_16(p)));
  }
  static __m512 f32(const uint8_t* p) { return _mm512_loadu_ps(p); }
  template <NarrowCodes kCodes>
  [[gnu::always_inline]] static __m512 decode(const uint8_t* p) {
    if constexpr (kCodes == NarrowCodes::kInt8) return i8(p);
    const __m256i halves = _mm256_slli_epi16(_mm256_cvtepi8_epi16(load_16(p)), 7);  // sign twice
    return _mm512_cvtph_ps(
        _mm256_and_si256(halves, _mm256_set1_epi16(static_cast<int16_t>(0xbf80))));
  }
  // 2^(e - 128), half of what E8M0 says; subnormal where e is below 2.
  static __m512 half_e8m0(const uint8_t* p) {
    const __m512i e = _mm512_cvtepu8_epi32(load_16(p));
    const __m512i normal = _mm512_slli_epi32(_mm512_sub_epi32(e, _mm512_set1_epi32(1)), 23);
    const __m512i small = _mm512_sllv_epi32(_mm512_set1_epi32(0x200000), e);
    const __mmask16 is_small = _mm512_cmplt_epi32_mask(e, _mm512_set1_epi32(2));
    return _mm512_castsi512_ps(_mm512_mask_mov_epi32(normal, is_small, small));
  }
  // Without a sign, / 256.
  static __m512 e4m3(const uint8_t* p) {
    return _mm512_cvtph_ps(_mm256_slli_epi16(_mm256_cvtepu8_epi16(load_16(p)), 7));
  }
  static __m512 mul(__m512 a, __m512 b) { return _mm512_mul_ps(a, b); }
  static __m512 fma(__m512 a, __m512 b, __m512 c) { return _mm512_fmadd_ps(a, b, c); }
  static __m512 negative(__m512 a) {
    return _mm512_castsi512_ps(
        _mm512_xor_si512(_mm512_castps_si512(a), _mm512_set1_epi32(static_cast<int>(0x80000000u))));
  }
  static void store_scale(float* dst, __m512 value) {
    const __m512i low = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
    const __m512i high = _mm512_add_epi32(low, _mm512_set1_epi32(8));
    _mm512_store_ps(dst, _mm512_permutexvar_ps(low, value));
    _mm512_store_ps(dst + 16, _mm512_permutexvar_ps(high, value));
  }

  // code s + m, or code s, of sixteen elements, the first of which is the at-th of [width][2].
  template <bool kMin>
  [[gnu::always_inline]] static __m512 scaled(__m512 code, int64_t at, const float* s,
                                              const float* m) {
    if constexpr (kMin) {
      return _mm512_fmadd_ps(code, _mm512_load_ps(s + at), _mm512_load_ps(m + at));
    }
    return _mm512_mul_ps(code, _mm512_load_ps(s + at));
  }

  template <NarrowCodes kCodes, bool kMin>
  static void unpack_bytes(const uint8_t* codes, int64_t count, int64_t width, const float* s,
                           const float* m, uint16_t* dst) {
    const int64_t mask = 2 * width - 1;
    for (int64_t i = 0; i < count; i += 32) {
      const __m512 low = decode<kCodes>(codes + i);
      const __m512 high = decode<kCodes>(codes + i + 16);
      _mm512_store_si512(dst + i, Round::to_bf16(scaled<kMin>(low, i & mask, s, m),
                                                 scaled<kMin>(high, (i + 16) & mask, s, m)));
    }
  }

  // vpermps reads the low four bits of an index alone: a shift brings the next code there.
  template <bool kMin>
  static void unpack_nibbles(const uint8_t* codes, int64_t count, int64_t width,
                             const Values& values, const float* s, const float* m, uint16_t* dst) {
    const int64_t mask = 2 * width - 1;
    for (int64_t i = 0; i < count; i += 128, codes += 64, dst += 128) {
      const __m512i words = _mm512_loadu_si512(codes);
      unroll<4>([&](auto j) __attribute__((always_inline)) {
        const __m512 low = _mm512_permutexvar_ps(_mm512_srli_epi32(words, 8 * j), values.table);
        const __m512 high =
            _mm512_permutexvar_ps(_mm512_srli_epi32(words, 8 * j + 4), values.table);
        const int64_t at = (32 * j) & mask;
        _mm512_store_si512(dst + 32 * j,
                           Round::to_bf16(scaled<kMin>(low, at, s, m),
                                          scaled<kMin>(high, (at + 16) & mask, s, m)));
      });
    }
  }
};

// The chains of a tile of 64 lanes, from memory and back; `order` brings the rows of a register
// into the order of what is added to them, or back.
template <int kRows, typename Order>
[[gnu::always_inline]] inline void load_chains(const TileArgs& t, __m512 (&acc)[kRows][4],
                                               const Order& order) {
  unroll<4 * kRows>([&](auto i) __attribute__((always_inline)) {
    const float* const from = t.acc + i / 4 * t.acc_stride + i % 4 * 16;
    acc[i / 4][i % 4] = t.start_at_zero ? _mm512_setzero_ps() : order(_mm512_loadu_ps(from));
  });
}
template <int kRows, typename Order>
[[gnu::always_inline]] inline void store_chains(const TileArgs& t, const __m512 (&acc)[kRows][4],
                                                const Order& order) {
  unroll<4 * kRows>([&](auto i) __attribute__((always_inline)) {
    _mm512_storeu_ps(t.acc + i / 4 * t.acc_stride + i % 4 * 16, order(acc[i / 4][i % 4]));
  });
}

}  // namespace
}  // namespace strata::ops::cpu
