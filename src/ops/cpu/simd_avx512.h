// SPDX-License-Identifier: Apache-2.0
// The 16 lanes of cpu/simd.h in one AVX-512 register. Included by *_avx512.cc, what only they
// include, and this_path.h.
#pragma once
#include <immintrin.h>

#include "ops/cpu/simd.h"

namespace strata::ops::cpu {

struct Avx512 {
  struct F {
    __m512 v;
    friend F operator+(F a, F b) { return {_mm512_add_ps(a.v, b.v)}; }
    friend F operator-(F a, F b) { return {_mm512_sub_ps(a.v, b.v)}; }
    friend F operator*(F a, F b) { return {_mm512_mul_ps(a.v, b.v)}; }
    friend F operator/(F a, F b) { return {_mm512_div_ps(a.v, b.v)}; }
  };

  static F set1(float value) { return {_mm512_set1_ps(value)}; }
  static __mmask16 mask(Part part) { return static_cast<__mmask16>((1u << part.lanes) - 1u); }

  static F widen(__m256i halves) {
    return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16))};
  }
  // To nearest even in integers: the instruction of AVX512-BF16 would flush subnormals.
  static __m256i to_bf16_bits(F x) {
    const __m512i bits = _mm512_castps_si512(x.v);
    const __m512i upper = _mm512_srli_epi32(bits, 16);
    const __m512i odd = _mm512_and_si512(upper, _mm512_set1_epi32(1));
    const __m512i bias = _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff));
    const __m512i rounded = _mm512_srli_epi32(_mm512_add_epi32(bits, bias), 16);
    const __mmask16 nan = _mm512_cmp_ps_mask(x.v, x.v, _CMP_UNORD_Q);
    const __m512i quiet = _mm512_or_si512(upper, _mm512_set1_epi32(0x40));
    return _mm512_cvtepi32_epi16(_mm512_mask_mov_epi32(rounded, nan, quiet));
  }

  static F load(const float* p, Whole, float = 0.0f) { return {_mm512_loadu_ps(p)}; }
  static F load(const float* p, Part part, float fill = 0.0f) {
    return {_mm512_mask_loadu_ps(_mm512_set1_ps(fill), mask(part), p)};
  }
  static F load(const Bf16* p, Whole, float = 0.0f) {
    return widen(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  static F load(const Bf16* p, Part part, float fill = 0.0f) {
    const F x = widen(_mm256_maskz_loadu_epi16(mask(part), p));
    return {_mm512_mask_mov_ps(_mm512_set1_ps(fill), mask(part), x.v)};
  }
  static void store(float* p, F x, Whole) { _mm512_storeu_ps(p, x.v); }
  static void store(float* p, F x, Part part) { _mm512_mask_storeu_ps(p, mask(part), x.v); }
  static void store(Bf16* p, F x, Whole) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), to_bf16_bits(x));
  }
  static void store(Bf16* p, F x, Part part) {
    _mm256_mask_storeu_epi16(p, mask(part), to_bf16_bits(x));
  }

  static F fma(F a, F b, F c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
  static F fnma(F a, F b, F c) { return {_mm512_fnmadd_ps(a.v, b.v, c.v)}; }
  static F max(F a, F b) { return {_mm512_max_ps(a.v, b.v)}; }
  static F min(F a, F b) { return {_mm512_min_ps(a.v, b.v)}; }
  static F abs(F x) { return {_mm512_abs_ps(x.v)}; }
  static F sqrt(F x) { return {_mm512_sqrt_ps(x.v)}; }
  static F select_negative(F x, F a, F b) {
    const __mmask16 negative = _mm512_cmp_ps_mask(x.v, _mm512_setzero_ps(), _CMP_LT_OQ);
    return {_mm512_mask_mov_ps(b.v, negative, a.v)};
  }
  static F scale_by_power(F x, F n) { return {_mm512_scalef_ps(x.v, n.v)}; }

  static float sum(F x) {
    const __m256 high = _mm512_extractf32x8_ps(x.v, 1);
    const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(x.v), high);
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
  }
  static float max_lane(F x) {
    const __m256 high = _mm512_extractf32x8_ps(x.v, 1);
    const __m256 eight = _mm256_max_ps(_mm512_castps512_ps256(x.v), high);
    const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
  }
};

}  // namespace strata::ops::cpu
