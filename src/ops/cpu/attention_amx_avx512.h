// SPDX-License-Identifier: Apache-2.0
// Pairs of bf16 in AVX-512 registers without instructions for bf16: what the two engines of the
// path amx share. Probabilities are rounded as cpu/simd.h rounds, which keeps subnormals. Included
// by attention_amx_avx512.cc and attention_amx_tiles.cc.
#pragma once
#include "ops/cpu/attention_avx512.h"
#include "ops/cpu/attention_groups_impl.h"

namespace strata::ops::cpu {
namespace {

struct AmxPairs : InGroups, PairWords {
  static constexpr int64_t kGroupRows = 6;
  // Two chains each; the words of x and of the panel want registers too.
  static constexpr int num_strip_vectors(int rows) { return rows <= 2 ? 4 : rows <= 4 ? 2 : 1; }

  static F low_halves(F words) {
    return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(words.v), 16))};
  }
  static F high_halves(F words) {
    const __m512i mask = _mm512_set1_epi32(static_cast<int>(0xffff0000));
    return {_mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(words.v), mask))};
  }
  static void store_rounded_row(uint32_t* dst, const F (&x)[kBlockVectors]) {
#pragma GCC unroll 4
    for (int j = 0; j < kBlockVectors; ++j) {
      V::store(reinterpret_cast<Bf16*>(dst) + kLanes * j, x[j], Whole{});
    }
  }
  static void store_rounded_step(uint32_t* dst, const F (&x)[2][kBlockVectors]) {
#pragma GCC unroll 4
    for (int j = 0; j < kBlockVectors; ++j) {
      const __m512i low = _mm512_cvtepu16_epi32(V::to_bf16_bits(x[0][j]));
      const __m512i high = _mm512_cvtepu16_epi32(V::to_bf16_bits(x[1][j]));
      _mm512_storeu_si512(dst + kLanes * j, _mm512_or_si512(low, _mm512_slli_epi32(high, 16)));
    }
  }
};

}  // namespace
}  // namespace strata::ops::cpu
