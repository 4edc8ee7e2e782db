// SPDX-License-Identifier: Apache-2.0
#if defined(__x86_64__)
#include "ops/cpu/pack_impl.h"
#include "ops/cpu/panels_avx2.h"

namespace strata::ops::cpu {
namespace {

inline __m128i load_128(const uint16_t* data) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(data));
}

inline __m256i join(__m128i low, __m128i high) { return _mm256_set_m128i(high, low); }

inline __m128i to_bf16(__m256 value) { return narrow(round_to_bf16(value)); }

// Eight steps of a row, converted.
template <PackType kFrom, bool kToBf16>
inline __m256i load_steps(const void* rows, int64_t index) {
  if constexpr (kFrom == PackType::kF32) {
    const float* row = static_cast<const float*>(rows) + index;
    const __m256 low = _mm256_loadu_ps(row);
    if constexpr (!kToBf16) return _mm256_castps_si256(low);
    return join(to_bf16(low), to_bf16(_mm256_loadu_ps(row + 8)));
  } else {
    const uint16_t* row = static_cast<const uint16_t*>(rows) + index;
    if constexpr (kFrom == PackType::kBF16) {
      if constexpr (kToBf16) return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(row));
      return _mm256_slli_epi32(_mm256_cvtepu16_epi32(load_128(row)), 16);
    } else {
      const __m256 low = _mm256_cvtph_ps(load_128(row));
      if constexpr (!kToBf16) return _mm256_castps_si256(low);
      return join(to_bf16(low), to_bf16(_mm256_cvtph_ps(load_128(row + 8))));
    }
  }
}

struct Path {
  using W = Words;
  static constexpr bool kPacksPartialBlocks = false;  // there are none
  template <PackType kFrom, bool kToBf16>
  static __m256i load(const void* rows, int64_t index) {
    return load_steps<kFrom, kToBf16>(rows, index);
  }
  static void fetch(const char*) {}
  template <PackType kFrom, bool kToBf16>
  static void pack_partial_block(const PackArgs&, int64_t, int64_t) {}
};

}  // namespace

void pack_avx2(const PackArgs& a) { pack<Path>(a); }

}  // namespace strata::ops::cpu
#endif
