// SPDX-License-Identifier: Apache-2.0
// What the AVX2 paths of attention share. Included by attention_avx2.cc and attention_amx_avx2.cc
// only.
#pragma once
#include "ops/cpu/attention_kernels_impl.h"
#include "ops/cpu/simd_avx2.h"

namespace strata::ops::cpu {

// t[i] lane j becomes t[j] lane i.
[[gnu::always_inline]] inline void transpose_8x8(__m256 (&t)[8]) {
  __m256 a[8];
#pragma GCC unroll 8
  for (int i = 0; i < 8; i += 2) {
    a[i] = _mm256_unpacklo_ps(t[i], t[i + 1]);
    a[i + 1] = _mm256_unpackhi_ps(t[i], t[i + 1]);
  }
  __m256 b[8];
#pragma GCC unroll 8
  for (int i = 0; i < 8; i += 4) {
    b[i] = _mm256_shuffle_ps(a[i], a[i + 2], 0x44);
    b[i + 1] = _mm256_shuffle_ps(a[i], a[i + 2], 0xee);
    b[i + 2] = _mm256_shuffle_ps(a[i + 1], a[i + 3], 0x44);
    b[i + 3] = _mm256_shuffle_ps(a[i + 1], a[i + 3], 0xee);
  }
#pragma GCC unroll 8
  for (int c = 0; c < 4; ++c) {
    t[c] = _mm256_permute2f128_ps(b[c], b[4 + c], 0x20);
    t[4 + c] = _mm256_permute2f128_ps(b[c], b[4 + c], 0x31);
  }
}

// t[i] lane j becomes t[j] lane i.
template <typename F>
[[gnu::always_inline]] inline void transpose_16x16(F (&t)[kLanes]) {
  for (int half = 0; half < kLanes; half += 8) {
    __m256 low[8];
    __m256 high[8];
    for (int i = 0; i < 8; ++i) low[i] = t[half + i].lo;
    for (int i = 0; i < 8; ++i) high[i] = t[half + i].hi;
    transpose_8x8(low);
    transpose_8x8(high);
    for (int i = 0; i < 8; ++i) t[half + i] = {low[i], high[i]};
  }
  // The two halves hold [columns 0-7 | columns 8-15] of rows 0-7 and of rows 8-15.
  for (int i = 0; i < 8; ++i) {
    const F top = t[i];
    const F bottom = t[8 + i];
    t[i] = {top.lo, bottom.lo};
    t[8 + i] = {top.hi, bottom.hi};
  }
}

}  // namespace strata::ops::cpu
