// SPDX-License-Identifier: Apache-2.0
#if defined(__x86_64__)
#include "ops/cpu/pack_impl.h"
#include "ops/cpu/panels_avx512.h"

namespace strata::ops::cpu {
namespace {

inline __m512i join(__m256i low, __m256i high) {
  return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
}

inline __m256i load_256(const uint16_t* data) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(data));
}

// Sixteen steps of a row, converted.
template <PackType kFrom, bool kToBf16>
inline __m512i load_steps(const void* rows, int64_t index) {
  if constexpr (kFrom == PackType::kF32) {
    const float* row = static_cast<const float*>(rows) + index;
    if constexpr (!kToBf16) return _mm512_loadu_si512(row);
    return join(round_to_bf16(_mm512_loadu_ps(row)), round_to_bf16(_mm512_loadu_ps(row + 16)));
  } else {
    const uint16_t* row = static_cast<const uint16_t*>(rows) + index;
    if constexpr (kFrom == PackType::kBF16) {
      if constexpr (kToBf16) return _mm512_loadu_si512(row);
      return _mm512_castps_si512(widen(load_256(row)));
    } else {
      const __m512 low = _mm512_cvtph_ps(load_256(row));
      if constexpr (!kToBf16) return _mm512_castps_si512(low);
      return join(round_to_bf16(low), round_to_bf16(_mm512_cvtph_ps(load_256(row + 16))));
    }
  }
}

// `count` (1 to 16) steps of a row, converted; the rest zero.
template <PackType kFrom, bool kToBf16>
inline __m512i load_partial(const void* rows, int64_t index, int64_t count) {
  const int64_t elements = count * (kToBf16 ? 2 : 1);
  const __mmask16 low = columns_mask(elements), high = columns_mask(elements - 16);
  if constexpr (kFrom == PackType::kF32) {
    const float* row = static_cast<const float*>(rows) + index;
    const __m512 first = _mm512_maskz_loadu_ps(low, row);
    if constexpr (!kToBf16) return _mm512_castps_si512(first);
    return join(round_to_bf16(first), round_to_bf16(_mm512_maskz_loadu_ps(high, row + 16)));
  } else {
    const uint16_t* row = static_cast<const uint16_t*>(rows) + index;
    const __m256i first = _mm256_maskz_loadu_epi16(low, row);
    const __m256i second = _mm256_maskz_loadu_epi16(high, row + 16);
    if constexpr (kFrom == PackType::kBF16) {
      if constexpr (kToBf16) return join(first, second);
      return _mm512_castps_si512(widen(first));
    } else {
      if constexpr (!kToBf16) return _mm512_castps_si512(_mm512_cvtph_ps(first));
      return join(round_to_bf16(_mm512_cvtph_ps(first)), round_to_bf16(_mm512_cvtph_ps(second)));
    }
  }
}

// The block at `step` and `lane` where it is not whole: what is outside stays untouched.
template <PackType kFrom, bool kToBf16>
void pack_partial_block(const PackArgs& a, int64_t step, int64_t lane) {
  const int64_t steps = a.steps - step < 16 ? a.steps - step : 16;
  const int64_t lanes = a.lanes - lane < 16 ? a.lanes - lane : 16;
  __m512i block[16];
  for (int64_t i = 0; i < 16; ++i) {
    const int64_t index = (lane + i) * a.stride + step * (kToBf16 ? 2 : 1);
    block[i] =
        i < lanes ? load_partial<kFrom, kToBf16>(a.rows, index, steps) : _mm512_setzero_si512();
  }
  transpose_16x16(block);
  auto* dst = static_cast<uint32_t*>(a.dst) + step * a.width + lane;
  for (int64_t i = 0; i < steps; ++i) {
    _mm512_mask_storeu_epi32(dst + i * a.width, columns_mask(lanes), block[i]);
  }
}

struct Path {
  using W = Words;
  static constexpr bool kPacksPartialBlocks = true;
  template <PackType kFrom, bool kToBf16>
  static __m512i load(const void* rows, int64_t index) {
    return load_steps<kFrom, kToBf16>(rows, index);
  }
  static void fetch(const char* row) { _mm_prefetch(row + 256, _MM_HINT_T0); }
  template <PackType kFrom, bool kToBf16>
  static void pack_partial_block(const PackArgs& a, int64_t step, int64_t lane) {
    ::strata::ops::cpu::pack_partial_block<kFrom, kToBf16>(a, step, lane);
  }
};

}  // namespace

void pack_avx512(const PackArgs& a) { pack<Path>(a); }

}  // namespace strata::ops::cpu
#endif
