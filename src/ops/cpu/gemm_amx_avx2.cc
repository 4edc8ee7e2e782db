// SPDX-License-Identifier: Apache-2.0
// bf16 products of the path `amx` by FMA with AVX2: the bits of cpu/gemm_amx_avx512.cc.
#if defined(__x86_64__)
#include <immintrin.h>

#include "ops/cpu/gemm_kernels.h"
#include "ops/cpu/mxcsr.h"
#include "ops/cpu/unroll.h"

namespace strata::ops::cpu {
namespace {

constexpr int kLanes = 8;
constexpr int kVectors = 2;                  // of lanes at a time
constexpr int64_t kGroup = 2 * kGroupSteps;  // elements

// `count` bf16 elements as f32, zeros behind them.
[[gnu::always_inline]] inline void widen_row(const uint16_t* x, int64_t count, float* to) {
  for (int64_t k = 0; k < kGroup; ++k) {
    const uint32_t bits = k < count ? uint32_t{x[k]} << 16 : 0;
    __builtin_memcpy(to + k, &bits, sizeof(bits));
  }
}

// Sixteen lanes of a panel for kRows rows.
template <int kRows>
[[gnu::noinline]] void accumulate_tile(const TileArgs& a, int64_t row, int64_t lane) {
  alignas(32) float x[kRows][kGroup];
  float* const acc = a.acc + row * a.acc_stride + lane;
  const char* panel = static_cast<const char*>(a.panel) + lane * 4;
  const __m256i upper = _mm256_set1_epi32(static_cast<int>(0xffff0000u));
  for (int64_t k = 0; k < a.cols; k += kGroup) {
    const int64_t count = a.cols - k < kGroup ? a.cols - k : kGroup;
    for (int r = 0; r < kRows; ++r) {
      widen_row(static_cast<const uint16_t*>(a.x) + a.offset_of(row + r, k), count, x[r]);
    }
    __m256 even[kRows][kVectors];
    __m256 odd[kRows][kVectors];
    unroll<kRows * kVectors>([&](auto i) __attribute__((always_inline)) {
      even[i / kVectors][i % kVectors] = odd[i / kVectors][i % kVectors] = _mm256_setzero_ps();
    });
    const int64_t pairs = (count + 1) / 2;
    for (int64_t pair = 0; pair < pairs; ++pair, panel += a.width * 4) {
      unroll<kVectors>([&](auto v) __attribute__((always_inline)) {
        const __m256i w = _mm256_load_si256(reinterpret_cast<const __m256i*>(panel + v * 32));
        const __m256 w_even = _mm256_castsi256_ps(_mm256_slli_epi32(w, 16));
        const __m256 w_odd = _mm256_castsi256_ps(_mm256_and_si256(w, upper));
        unroll<kRows>([&](auto r) __attribute__((always_inline)) {
          even[r][v] = _mm256_fmadd_ps(_mm256_set1_ps(x[r][2 * pair]), w_even, even[r][v]);
          odd[r][v] = _mm256_fmadd_ps(_mm256_set1_ps(x[r][2 * pair + 1]), w_odd, odd[r][v]);
        });
      });
    }
    const bool is_short = pairs < kGroupSteps;  // ends with a pair of zeros
    const bool from_zero = a.start_at_zero && k == 0;
    unroll<kRows * kVectors>([&](auto i) __attribute__((always_inline)) {
      constexpr int r = i / kVectors, v = i % kVectors;
      if (is_short) {
        even[r][v] += _mm256_setzero_ps();
        odd[r][v] += _mm256_setzero_ps();
      }
      float* const at = acc + r * a.acc_stride + v * kLanes;
      const __m256 old = from_zero ? _mm256_setzero_ps() : _mm256_loadu_ps(at);
      _mm256_storeu_ps(at, old + (even[r][v] + odd[r][v]));
    });
  }
}

void accumulate(const TileArgs& a) {
  using Accumulate = void (*)(const TileArgs&, int64_t, int64_t);
  static constexpr Accumulate kTiles[] = {accumulate_tile<1>, accumulate_tile<2>,
                                          accumulate_tile<3>};
  constexpr int64_t kMostRows = 3;
  const FlushDenormals flush;
  for (int64_t lane = 0; lane < a.width; lane += kLanes * kVectors) {
    for (int64_t row = 0; row < a.rows; row += kMostRows) {
      const int64_t rows = a.rows - row < kMostRows ? a.rows - row : kMostRows;
      kTiles[rows - 1](a, row, lane);
    }
  }
}

GemmKernels make_kernels() {
  GemmKernels kernels = gemm_kernels_avx2(/*bf16=*/true);
  kernels.group = kGroupSteps;
  kernels.accumulate = accumulate;
  return kernels;
}

}  // namespace

const GemmKernels& gemm_kernels_amx_avx2() {
  static const GemmKernels kernels = make_kernels();
  return kernels;
}

}  // namespace strata::ops::cpu
#endif
