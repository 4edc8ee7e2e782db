// SPDX-License-Identifier: Apache-2.0
// Roundings and transposes shared by the AVX2 files of products and panels. Every including file
// has its own copy: nothing here may be merged with code for other instruction sets.
#pragma once
#include <immintrin.h>

#include <cstdint>

namespace strata::ops::cpu {
namespace {

// The rounding of to_bf16 (tensor/dtype.h), in the upper halves moved down.
inline __m256i round_to_bf16(__m256 value) {
  const __m256i u = _mm256_castps_si256(value);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
  const __m256i nearest = _mm256_add_epi32(_mm256_add_epi32(u, _mm256_set1_epi32(0x7fff)), odd);
  const __m256i quiet = _mm256_or_si256(u, _mm256_set1_epi32(0x400000));
  const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(value, value, _CMP_UNORD_Q));
  return _mm256_srli_epi32(_mm256_blendv_epi8(nearest, quiet, nan), 16);
}

inline __m128i narrow(__m256i low_halves) {
  const __m256i packed = _mm256_packus_epi32(low_halves, low_halves);
  return _mm256_castsi256_si128(_mm256_permute4x64_epi64(packed, 0x08));
}

inline __m256i load_256(const void* data) {
  return _mm256_load_si256(static_cast<const __m256i*>(data));
}
inline void store_256(void* data, __m256i value) {
  _mm256_store_si256(static_cast<__m256i*>(data), value);
}

// All ones in the first `left` of eight 32-bit elements.
inline __m256i columns_mask(int64_t left) {
  const __m256i index = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  const int count = left >= 8 ? 8 : left <= 0 ? 0 : static_cast<int>(left);
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(count), index);
}

// Eight rows of eight 32-bit elements become eight columns.
inline void transpose_8x8(__m256i (&rows)[8]) {
  __m256i a[8];
  for (int i = 0; i < 8; i += 2) {
    a[i] = _mm256_unpacklo_epi32(rows[i], rows[i + 1]);
    a[i + 1] = _mm256_unpackhi_epi32(rows[i], rows[i + 1]);
  }
  for (int half = 0; half < 2; ++half) {
    const __m256i low0 = _mm256_unpacklo_epi64(a[half], a[2 + half]);
    const __m256i low1 = _mm256_unpackhi_epi64(a[half], a[2 + half]);
    const __m256i high0 = _mm256_unpacklo_epi64(a[4 + half], a[6 + half]);
    const __m256i high1 = _mm256_unpackhi_epi64(a[4 + half], a[6 + half]);
    rows[2 * half] = _mm256_permute2x128_si256(low0, high0, 0x20);
    rows[2 * half + 1] = _mm256_permute2x128_si256(low1, high1, 0x20);
    rows[4 + 2 * half] = _mm256_permute2x128_si256(low0, high0, 0x31);
    rows[5 + 2 * half] = _mm256_permute2x128_si256(low1, high1, 0x31);
  }
}

// A register of 32-bit words, for the loops that the paths share (cpu/gemm_impl.h,
// cpu/pack_impl.h).
struct Words {
  using I = __m256i;
  using Mask = __m256i;
  static constexpr int64_t kCount = 8;
  static Mask mask(int64_t left) { return columns_mask(left); }
  static I zero() { return _mm256_setzero_si256(); }
  static I load(const void* data) { return load_256(data); }
  static I load_masked(const float* data, Mask mask) {
    return _mm256_castps_si256(_mm256_maskload_ps(data, mask));
  }
  static void store(void* data, I value) { store_256(data, value); }
  static void stream(void* data, I value) {
    _mm256_stream_si256(static_cast<__m256i*>(data), value);
  }
  static void store_masked(uint32_t* data, I value, Mask mask) {
    _mm256_maskstore_epi32(reinterpret_cast<int*>(data), mask, value);
  }
  static void transpose(I (&rows)[kCount]) { transpose_8x8(rows); }
};

}  // namespace
}  // namespace strata::ops::cpu
