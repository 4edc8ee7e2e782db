// SPDX-License-Identifier: Apache-2.0
#include "ops/cpu/attention_avx512.h"

namespace strata::ops::cpu {
namespace {

// Conversions here are the instruction's: to nearest even, subnormals to zero.
struct PairKernel : OneChain, PairWords {
  static constexpr int kTileVectors = 4;

  static F dot(F acc, F panel, F word) {
    return {_mm512_dpbf16_ps(acc.v, (__m512bh)panel.v, (__m512bh)word.v)};
  }
  static void store_rounded_row(uint32_t* dst, const F (&x)[kBlockVectors]) {
#pragma GCC unroll 2
    for (int j = 0; j < kBlockVectors; j += 2) {
      const __m512bh pair = _mm512_cvtne2ps_pbh(x[j + 1].v, x[j].v);
      _mm512_storeu_si512(dst + kLanes / 2 * j, (__m512i)pair);
    }
  }
  static void store_rounded_step(uint32_t* dst, const F (&x)[2][kBlockVectors]) {
#pragma GCC unroll 4
    for (int j = 0; j < kBlockVectors; ++j) {
      const __m512i low = _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(x[0][j].v));
      const __m512i high = _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(x[1][j].v));
      _mm512_storeu_si512(dst + kLanes * j, _mm512_or_si512(low, _mm512_slli_epi32(high, 16)));
    }
  }
};

}  // namespace

const AttentionKernels kAttentionAvx512Bf16 = attention_kernels<PairKernel>();

}  // namespace strata::ops::cpu
