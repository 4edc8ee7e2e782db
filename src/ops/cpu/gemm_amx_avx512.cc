// SPDX-License-Identifier: Apache-2.0
// bf16 products of the path `amx` by FMA with AVX-512: the bits of TDPBF16PS (cpu/tiles.h) on
// machines without tiles, and of few rows on those that have them. A group of 16 pairs makes two
// chains from zero, of its even and of its odd elements, which live in registers; their sum is
// added to the accumulator in memory.
#if defined(__x86_64__)
#include <immintrin.h>

#include "ops/cpu/gemm_kernels.h"
#include "ops/cpu/mxcsr.h"
#include "ops/cpu/unroll.h"

namespace strata::ops::cpu {
namespace {

constexpr int kLanes = 16;
constexpr int64_t kGroup = 2 * kGroupSteps;  // elements

struct Tile {
  TileArgs args;
  int64_t row;   // of the first of the rows that share registers
  int64_t lane;  // of the first vector
};

// `count` bf16 elements as f32, zeros behind them.
[[gnu::always_inline]] inline void widen_row(const uint16_t* x, int64_t count, float* to) {
  const __mmask32 mask = count >= kGroup ? 0xffffffffu : (1u << count) - 1u;
  const __m512i bits = _mm512_maskz_loadu_epi16(mask, x);
  const __m512i low = _mm512_cvtepu16_epi32(_mm512_castsi512_si256(bits));
  const __m512i high = _mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64(bits, 1));
  _mm512_store_si512(to, _mm512_slli_epi32(low, 16));
  _mm512_store_si512(to + kLanes, _mm512_slli_epi32(high, 16));
}

// The chains of a group, even and odd.
template <int kRows, int kVectors>
struct Chains {
  __m512 even[kRows][kVectors];
  __m512 odd[kRows][kVectors];

  [[gnu::always_inline]] void zero() {
    unroll<kRows * kVectors>([&](auto i) __attribute__((always_inline)) {
      even[i / kVectors][i % kVectors] = _mm512_setzero_ps();
      odd[i / kVectors][i % kVectors] = _mm512_setzero_ps();
    });
  }
  [[gnu::always_inline]] void add_pair(const char* panel, const float (*x)[kGroup], int64_t pair) {
    unroll<kVectors>([&](auto v) __attribute__((always_inline)) {
      const __m512i w = _mm512_load_si512(panel + v * 64);
      const __m512 w_even = _mm512_castsi512_ps(_mm512_slli_epi32(w, 16));
      const __m512 w_odd = _mm512_castsi512_ps(
          _mm512_and_si512(w, _mm512_set1_epi32(static_cast<int>(0xffff0000u))));
      unroll<kRows>([&](auto r) __attribute__((always_inline)) {
        even[r][v] = _mm512_fmadd_ps(_mm512_set1_ps(x[r][2 * pair]), w_even, even[r][v]);
        odd[r][v] = _mm512_fmadd_ps(_mm512_set1_ps(x[r][2 * pair + 1]), w_odd, odd[r][v]);
      });
    });
  }
  // What a pair of zeros adds: minus zero becomes zero.
  [[gnu::always_inline]] void add_zeros() {
    unroll<kRows * kVectors>([&](auto i) __attribute__((always_inline)) {
      even[i / kVectors][i % kVectors] += _mm512_setzero_ps();
      odd[i / kVectors][i % kVectors] += _mm512_setzero_ps();
    });
  }
  [[gnu::always_inline]] void add_to(float* acc, int64_t stride, bool from_zero) const {
    unroll<kRows>([&](auto r) __attribute__((always_inline)) {
      unroll<kVectors>([&](auto v) __attribute__((always_inline)) {
        float* const at = acc + r * stride + v * kLanes;
        const __m512 old = from_zero ? _mm512_setzero_ps() : _mm512_loadu_ps(at);
        _mm512_storeu_ps(at, old + (even[r][v] + odd[r][v]));
      });
    });
  }
};

template <int kRows, int kVectors>
[[gnu::noinline]] void accumulate_tile(const Tile& tile) {
  const TileArgs& a = tile.args;
  alignas(64) float x[kRows][kGroup];
  float* const acc = a.acc + tile.row * a.acc_stride + tile.lane;
  const char* panel = static_cast<const char*>(a.panel) + tile.lane * 4;
  const int64_t pair_bytes = a.width * 4;
  for (int64_t k = 0; k < a.cols; k += kGroup) {
    const int64_t count = a.cols - k < kGroup ? a.cols - k : kGroup;
    for (int r = 0; r < kRows; ++r) {
      widen_row(static_cast<const uint16_t*>(a.x) + a.offset_of(tile.row + r, k), count, x[r]);
    }
    Chains<kRows, kVectors> chains;
    chains.zero();
    const int64_t pairs = (count + 1) / 2;
    for (int64_t pair = 0; pair < pairs; ++pair, panel += pair_bytes) {
      chains.add_pair(panel, x, pair);
    }
    if (pairs < kGroupSteps) chains.add_zeros();
    chains.add_to(acc, a.acc_stride, a.start_at_zero && k == 0);
  }
}

using Accumulate = void (*)(const Tile&);

// All rows by kVectors vectors of lanes, kMostRows rows at a time.
template <int kVectors, int kMostRows>
void accumulate_lanes(const TileArgs& a, int64_t lane, const Accumulate (&kernels)[kMostRows]) {
  for (int64_t row = 0; row < a.rows; row += kMostRows) {
    const int64_t rows = a.rows - row < kMostRows ? a.rows - row : kMostRows;
    kernels[rows - 1]({a, row, lane});
  }
}

void accumulate(const TileArgs& a) {
  static constexpr Accumulate k64[] = {accumulate_tile<1, 4>, accumulate_tile<2, 4>};
  static constexpr Accumulate k32[] = {accumulate_tile<1, 2>, accumulate_tile<2, 2>,
                                       accumulate_tile<3, 2>, accumulate_tile<4, 2>,
                                       accumulate_tile<5, 2>, accumulate_tile<6, 2>};
  static constexpr Accumulate k16[] = {
      accumulate_tile<1, 1>, accumulate_tile<2, 1>, accumulate_tile<3, 1>, accumulate_tile<4, 1>,
      accumulate_tile<5, 1>, accumulate_tile<6, 1>, accumulate_tile<7, 1>, accumulate_tile<8, 1>};
  const FlushDenormals flush;
  if (a.width == 64 && a.rows <= 2) return accumulate_lanes<4>(a, 0, k64);
  if (a.width == 16) return accumulate_lanes<1>(a, 0, k16);
  for (int64_t lane = 0; lane < a.width; lane += 32) accumulate_lanes<2>(a, lane, k32);
}

GemmKernels make_kernels() {
  GemmKernels kernels = gemm_kernels_avx512(/*bf16=*/true);
  kernels.group = kGroupSteps;
  kernels.rows_16 = 8;
  kernels.rows_32 = 6;
  kernels.rows_64 = 6;
  kernels.accumulate = accumulate;
  return kernels;
}

}  // namespace

const GemmKernels& gemm_kernels_amx_avx512() {
  static const GemmKernels kernels = make_kernels();
  return kernels;
}

}  // namespace strata::ops::cpu
#endif
