// SPDX-License-Identifier: Apache-2.0
// What the AVX-512 paths of attention share. Included by attention_avx512*.cc and
// attention_amx_avx512.h only.
#pragma once
#include "ops/cpu/attention_kernels_impl.h"
#include "ops/cpu/simd_avx512.h"

namespace strata::ops::cpu {

// t[i] lane j becomes t[j] lane i.
template <typename F>
[[gnu::always_inline]] inline void transpose_16x16(F (&t)[kLanes]) {
  __m512i a[kLanes];
  __m512i b[kLanes];
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i) a[i] = _mm512_castps_si512(t[i].v);
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; i += 2) {
    b[i] = _mm512_unpacklo_epi32(a[i], a[i + 1]);
    b[i + 1] = _mm512_unpackhi_epi32(a[i], a[i + 1]);
  }
  // a[4 g + c] holds column 4 l + c of rows 4 g .. 4 g + 3 in 128-bit lane l.
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; i += 4) {
    a[i] = _mm512_unpacklo_epi64(b[i], b[i + 2]);
    a[i + 1] = _mm512_unpackhi_epi64(b[i], b[i + 2]);
    a[i + 2] = _mm512_unpacklo_epi64(b[i + 1], b[i + 3]);
    a[i + 3] = _mm512_unpackhi_epi64(b[i + 1], b[i + 3]);
  }
#pragma GCC unroll 16
  for (int c = 0; c < 4; ++c) {
    const __m512i low01 = _mm512_shuffle_i32x4(a[c], a[4 + c], 0x88);   // lanes 0, 2 of groups 0, 1
    const __m512i high01 = _mm512_shuffle_i32x4(a[c], a[4 + c], 0xdd);  // lanes 1, 3
    const __m512i low23 = _mm512_shuffle_i32x4(a[8 + c], a[12 + c], 0x88);
    const __m512i high23 = _mm512_shuffle_i32x4(a[8 + c], a[12 + c], 0xdd);
    t[c].v = _mm512_castsi512_ps(_mm512_shuffle_i32x4(low01, low23, 0x88));
    t[4 + c].v = _mm512_castsi512_ps(_mm512_shuffle_i32x4(high01, high23, 0x88));
    t[8 + c].v = _mm512_castsi512_ps(_mm512_shuffle_i32x4(low01, low23, 0xdd));
    t[12 + c].v = _mm512_castsi512_ps(_mm512_shuffle_i32x4(high01, high23, 0xdd));
  }
}

// Words (first[i], second[i]), of 32 elements each: the first sixteen, and the others.
template <typename F>
[[gnu::always_inline]] inline void interleave_halves(F first, F second, F& low, F& high) {
  alignas(64) static constexpr uint16_t kLow[32] = {0,  32, 1,  33, 2,  34, 3,  35, 4,  36, 5,
                                                    37, 6,  38, 7,  39, 8,  40, 9,  41, 10, 42,
                                                    11, 43, 12, 44, 13, 45, 14, 46, 15, 47};
  const __m512i index = _mm512_load_si512(kLow);
  const __m512i upper = _mm512_add_epi16(index, _mm512_set1_epi16(16));
  const __m512i a = _mm512_castps_si512(first.v);
  const __m512i b = _mm512_castps_si512(second.v);
  low.v = _mm512_castsi512_ps(_mm512_permutex2var_epi16(a, index, b));
  high.v = _mm512_castsi512_ps(_mm512_permutex2var_epi16(a, upper, b));
}

namespace {

// Words that are pairs of bf16: how they are read and laid out, whatever multiplies them.
struct PairWords {
  using V = Avx512;
  using F = V::F;
  using Element = Bf16;
  static constexpr int64_t kPack = 2;
  static F load_words(const Bf16* x, int64_t left) {
    if (left >= 2 * kLanes) return {_mm512_loadu_ps(x)};
    const __mmask32 mask = (1u << left) - 1u;
    return {_mm512_castsi512_ps(_mm512_maskz_loadu_epi16(mask, x))};
  }
  static void transpose(F (&t)[kLanes]) { transpose_16x16(t); }
  static void interleave(F first, F second, F& low, F& high) {
    interleave_halves(first, second, low, high);
  }
};

}  // namespace

}  // namespace strata::ops::cpu
