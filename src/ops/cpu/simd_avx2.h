// SPDX-License-Identifier: Apache-2.0
// The 16 lanes of cpu/simd.h in two AVX2 registers. Included by *_avx2.cc and this_path.h only.
#pragma once
#include <immintrin.h>

#include "ops/cpu/simd.h"

namespace strata::ops::cpu {

struct Avx2 {
  struct F {
    __m256 lo;
    __m256 hi;
    friend F operator+(F a, F b) { return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)}; }
    friend F operator-(F a, F b) { return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)}; }
    friend F operator*(F a, F b) { return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)}; }
    friend F operator/(F a, F b) { return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)}; }
  };

  static F set1(float value) { return {_mm256_set1_ps(value), _mm256_set1_ps(value)}; }

  static __m256 widen(__m128i halves) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
  }
  // Eight rounded values (to nearest even) in the low halves of 32-bit lanes.
  static __m256i to_bf16_bits(__m256 x) {
    const __m256i bits = _mm256_castps_si256(x);
    const __m256i upper = _mm256_srli_epi32(bits, 16);
    const __m256i odd = _mm256_and_si256(upper, _mm256_set1_epi32(1));
    const __m256i bias = _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff));
    const __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(bits, bias), 16);
    const __m256 nan = _mm256_cmp_ps(x, x, _CMP_UNORD_Q);
    const __m256i quiet = _mm256_or_si256(upper, _mm256_set1_epi32(0x40));
    return _mm256_blendv_epi8(rounded, quiet, _mm256_castps_si256(nan));
  }

  static F load(const float* p, Whole, float = 0.0f) {
    return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)};
  }
  static F load(const Bf16* p, Whole, float = 0.0f) {
    return {widen(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))),
            widen(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 8)))};
  }
  static F load(const float* p, Part part, float fill = 0.0f) {
    float lane[kLanes];
    for (int j = 0; j < kLanes; ++j) lane[j] = fill;
    __builtin_memcpy(lane, p, static_cast<unsigned>(part.lanes) * sizeof(float));
    return load(lane, Whole{});
  }
  static F load(const Bf16* p, Part part, float fill = 0.0f) {
    float lane[kLanes];
    for (int j = 0; j < kLanes; ++j) lane[j] = fill;
    for (int j = 0; j < part.lanes; ++j) {
      const unsigned bits = static_cast<unsigned>(p[j].bits) << 16;
      __builtin_memcpy(&lane[j], &bits, sizeof(bits));
    }
    return load(lane, Whole{});
  }
  static void store(float* p, F x, Whole) {
    _mm256_storeu_ps(p, x.lo);
    _mm256_storeu_ps(p + 8, x.hi);
  }
  static void store(Bf16* p, F x, Whole) {
    const __m256i packed = _mm256_packus_epi32(to_bf16_bits(x.lo), to_bf16_bits(x.hi));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_permute4x64_epi64(packed, 0xd8));
  }
  static void store(float* p, F x, Part part) {
    float lane[kLanes];
    store(lane, x, Whole{});
    __builtin_memcpy(p, lane, static_cast<unsigned>(part.lanes) * sizeof(float));
  }
  static void store(Bf16* p, F x, Part part) {
    uint16_t lane[kLanes];
    store(reinterpret_cast<Bf16*>(lane), x, Whole{});
    __builtin_memcpy(p, lane, static_cast<unsigned>(part.lanes) * sizeof(uint16_t));
  }

  static F fma(F a, F b, F c) {
    return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
  }
  static F fnma(F a, F b, F c) {
    return {_mm256_fnmadd_ps(a.lo, b.lo, c.lo), _mm256_fnmadd_ps(a.hi, b.hi, c.hi)};
  }
  static F max(F a, F b) { return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)}; }
  static F min(F a, F b) { return {_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)}; }
  static F abs(F x) {
    const __m256 sign = _mm256_set1_ps(-0.0f);
    return {_mm256_andnot_ps(sign, x.lo), _mm256_andnot_ps(sign, x.hi)};
  }
  static F sqrt(F x) { return {_mm256_sqrt_ps(x.lo), _mm256_sqrt_ps(x.hi)}; }
  static __m256 select_negative(__m256 x, __m256 a, __m256 b) {
    return _mm256_blendv_ps(b, a, _mm256_cmp_ps(x, _mm256_setzero_ps(), _CMP_LT_OQ));
  }
  static F select_negative(F x, F a, F b) {
    return {select_negative(x.lo, a.lo, b.lo), select_negative(x.hi, a.hi, b.hi)};
  }
  // Two factors, each a normal number: the first product is exact, so the result is rounded once.
  static __m256 scale_by_power(__m256 x, __m256 n) {
    const __m256i power = _mm256_cvtps_epi32(n);
    const __m256i half = _mm256_srai_epi32(power, 1);
    const __m256i rest = _mm256_sub_epi32(power, half);
    const __m256i bias = _mm256_set1_epi32(127);
    const __m256i first = _mm256_slli_epi32(_mm256_add_epi32(half, bias), 23);
    const __m256i second = _mm256_slli_epi32(_mm256_add_epi32(rest, bias), 23);
    return _mm256_mul_ps(_mm256_mul_ps(x, _mm256_castsi256_ps(first)), _mm256_castsi256_ps(second));
  }
  static F scale_by_power(F x, F n) {
    return {scale_by_power(x.lo, n.lo), scale_by_power(x.hi, n.hi)};
  }

  static float sum(F x) {
    const __m256 eight = _mm256_add_ps(x.lo, x.hi);
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
  }
  static float max_lane(F x) {
    const __m256 eight = _mm256_max_ps(x.lo, x.hi);
    const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
  }
};

}  // namespace strata::ops::cpu
