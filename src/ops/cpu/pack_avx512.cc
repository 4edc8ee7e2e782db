#if defined(__x86_64__)
#include "ops/cpu/pack_kernels.h"
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

template <PackType kFrom, bool kToBf16>
void pack(const PackArgs& a) {
  constexpr int64_t kElements = kToBf16 ? 2 : 1;  // of a step
  constexpr int64_t kAhead = 256;                 // bytes of each row
  constexpr int64_t kBytes = kFrom == PackType::kF32 ? 4 : 2;
  for (int64_t step = 0; step < a.steps; step += 16) {
    for (int64_t lane = 0; lane < a.lanes; lane += 16) {
      __m512i block[16];
      for (int i = 0; i < 16; ++i) {
        const int64_t index = (lane + i) * a.stride + step * kElements;
        _mm_prefetch(static_cast<const char*>(a.rows) + index * kBytes + kAhead, _MM_HINT_T0);
        block[i] = load_steps<kFrom, kToBf16>(a.rows, index);
      }
      transpose_16x16(block);
      auto* dst = static_cast<uint32_t*>(a.dst) + step * a.width + lane;
      for (int i = 0; i < 16; ++i) {
        if (a.stream) {
          _mm512_stream_si512(reinterpret_cast<__m512i*>(dst + i * a.width), block[i]);
        } else {
          _mm512_store_si512(dst + i * a.width, block[i]);
        }
      }
    }
  }
  if (a.stream) _mm_sfence();
}

}  // namespace

void pack_avx512(const PackArgs& a) {
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
