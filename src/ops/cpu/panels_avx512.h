// SPDX-License-Identifier: Apache-2.0
// Roundings and transposes shared by the AVX-512 files of products and panels. Every including file
// has its own copy: nothing here may be merged with code for other instruction sets.
#pragma once
#include <immintrin.h>

#include <cstdint>

namespace strata::ops::cpu {
namespace {

// The rounding of to_bf16 (tensor/dtype.h): to nearest even, NaN made quiet.
inline __m256i round_to_bf16(__m512 value) {
  const __m512i u = _mm512_castps_si512(value);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
  const __m512i nearest = _mm512_add_epi32(_mm512_add_epi32(u, _mm512_set1_epi32(0x7fff)), odd);
  const __mmask16 nan = _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q);
  const __m512i quiet = _mm512_or_si512(u, _mm512_set1_epi32(0x400000));
  return _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_mask_mov_epi32(nearest, nan, quiet), 16));
}

inline __m512 widen(__m256i bf16) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bf16), 16));
}

// Sixteen rows of sixteen 32-bit elements become sixteen columns.
inline void transpose_16x16(__m512i (&rows)[16]) {
  __m512i a[16];
  for (int i = 0; i < 16; i += 2) {
    a[i] = _mm512_unpacklo_epi32(rows[i], rows[i + 1]);
    a[i + 1] = _mm512_unpackhi_epi32(rows[i], rows[i + 1]);
  }
  __m512i b[16];
  for (int i = 0; i < 16; i += 4) {
    b[i] = _mm512_unpacklo_epi64(a[i], a[i + 2]);
    b[i + 1] = _mm512_unpackhi_epi64(a[i], a[i + 2]);
    b[i + 2] = _mm512_unpacklo_epi64(a[i + 1], a[i + 3]);
    b[i + 3] = _mm512_unpackhi_epi64(a[i + 1], a[i + 3]);
  }
  // b[4 g + j], 128-bit lane l: column 4 l + j of rows 4 g to 4 g + 3.
  for (int j = 0; j < 4; ++j) {
    const __m512i even01 = _mm512_shuffle_i32x4(b[j], b[4 + j], 0x88);
    const __m512i even23 = _mm512_shuffle_i32x4(b[8 + j], b[12 + j], 0x88);
    const __m512i odd01 = _mm512_shuffle_i32x4(b[j], b[4 + j], 0xdd);
    const __m512i odd23 = _mm512_shuffle_i32x4(b[8 + j], b[12 + j], 0xdd);
    rows[j] = _mm512_shuffle_i32x4(even01, even23, 0x88);
    rows[8 + j] = _mm512_shuffle_i32x4(even01, even23, 0xdd);
    rows[4 + j] = _mm512_shuffle_i32x4(odd01, odd23, 0x88);
    rows[12 + j] = _mm512_shuffle_i32x4(odd01, odd23, 0xdd);
  }
}

inline __mmask16 columns_mask(int64_t left) {
  return static_cast<__mmask16>(left >= 16 ? 0xffff : left <= 0 ? 0 : (1 << left) - 1);
}

// A register of 32-bit words, for the loops that the paths share (cpu/gemm_impl.h,
// cpu/pack_impl.h).
struct Words {
  using I = __m512i;
  using Mask = __mmask16;
  static constexpr int64_t kCount = 16;
  static Mask mask(int64_t left) { return columns_mask(left); }
  static I zero() { return _mm512_setzero_si512(); }
  static I load(const void* data) { return _mm512_load_si512(data); }
  static I load_masked(const float* data, Mask mask) {
    return _mm512_castps_si512(_mm512_maskz_loadu_ps(mask, data));
  }
  static void store(void* data, I value) { _mm512_store_si512(data, value); }
  static void stream(void* data, I value) {
    _mm512_stream_si512(static_cast<__m512i*>(data), value);
  }
  static void store_masked(uint32_t* data, I value, Mask mask) {
    _mm512_mask_storeu_epi32(data, mask, value);
  }
  static void transpose(I (&rows)[kCount]) { transpose_16x16(rows); }
};

}  // namespace
}  // namespace strata::ops::cpu
