#if defined(__x86_64__)
#include "ops/cpu/pack_kernels.h"
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

template <PackType kFrom, bool kToBf16>
void pack(const PackArgs& a) {
  constexpr int64_t kElements = kToBf16 ? 2 : 1;  // of a step
  for (int64_t step = 0; step < a.steps; step += 8) {
    for (int64_t lane = 0; lane < a.lanes; lane += 8) {
      __m256i block[8];
      for (int i = 0; i < 8; ++i) {
        block[i] = load_steps<kFrom, kToBf16>(a.rows, (lane + i) * a.stride + step * kElements);
      }
      transpose_8x8(block);
      auto* dst = static_cast<uint32_t*>(a.dst) + step * a.width + lane;
      for (int i = 0; i < 8; ++i) {
        if (a.stream) {
          _mm256_stream_si256(reinterpret_cast<__m256i*>(dst + i * a.width), block[i]);
        } else {
          store_256(dst + i * a.width, block[i]);
        }
      }
    }
  }
  if (a.stream) _mm_sfence();
}

}  // namespace

void pack_avx2(const PackArgs& a) {
  switch (a.from) {
    case PackType::kF32:
      return a.to_bf16 ? pack<PackType::kF32, true>(a) : pack<PackType::kF32, false>(a);
    case PackType::kBF16:
      return a.to_bf16 ? pack<PackType::kBF16, true>(a) : pack<PackType::kBF16, false>(a);
    case PackType::kF16:
      return a.to_bf16 ? pack<PackType::kF16, true>(a) : pack<PackType::kF16, false>(a);
  }
}

}  // namespace strata::ops::cpu
#endif
