// SPDX-License-Identifier: Apache-2.0
// bf16 products with vdpbf16ps: one instruction continues sixteen chains by a pair. Tiles of 6 rows
// x 64 lanes (12 x 32, 12 x 16) keep 24 (24, 12) chains in registers: enough to hide the latency,
// with four loads of weights and six broadcasts for 24 products.
#if defined(__x86_64__)
#include <immintrin.h>

#include <cstring>

#include "ops/cpu/gemm_kernels.h"
#include "ops/cpu/unroll.h"

namespace strata::ops::cpu {
namespace {

constexpr int64_t kPairBytes = 4;

// Sixteen copies of the pair at x.
inline __m512bh broadcast_pair(const char* x) {
  int32_t pair;
  std::memcpy(&pair, x, sizeof(pair));
  return (__m512bh)_mm512_set1_epi32(pair);
}

// Sixteen copies of (the element at x, zero).
inline __m512bh broadcast_last(const char* x) {
  uint16_t element;
  std::memcpy(&element, x, sizeof(element));
  return (__m512bh)_mm512_set1_epi32(element);
}

// The chains of a tile. Every loop is unrolled by hand, see cpu/unroll.h.
template <int kRows, int kVectors>
struct Chains {
  __m512 acc[kRows][kVectors];

  [[gnu::always_inline]] void zero() {
    unroll<kRows>([&](auto r) __attribute__((always_inline)) {
      unroll<kVectors>([&](auto v)
                           __attribute__((always_inline)) { acc[r][v] = _mm512_setzero_ps(); });
    });
  }
  [[gnu::always_inline]] void load(const float* data, int64_t stride) {
    unroll<kRows>([&](auto r) __attribute__((always_inline)) {
      unroll<kVectors>([&](auto v) __attribute__((always_inline)) {
        acc[r][v] = _mm512_loadu_ps(data + r * stride + 16 * v);
      });
    });
  }
  [[gnu::always_inline]] void store(float* data, int64_t stride) const {
    unroll<kRows>([&](auto r) __attribute__((always_inline)) {
      unroll<kVectors>([&](auto v) __attribute__((always_inline)) {
        _mm512_storeu_ps(data + r * stride + 16 * v, acc[r][v]);
      });
    });
  }
  // One pair of each row, where `broadcast` reads it from.
  template <typename Broadcast>
  [[gnu::always_inline]] void add_pair(const char* panel, const char* x, int64_t row_bytes,
                                       Broadcast broadcast) {
    __m512bh w[kVectors];
    unroll<kVectors>([&](auto v) __attribute__((always_inline)) {
      w[v] = (__m512bh)_mm512_load_si512(panel + v * 64);
    });
    unroll<kRows>([&](auto r) __attribute__((always_inline)) {
      const __m512bh value = broadcast(x + r * row_bytes);
      unroll<kVectors>([&](auto v) __attribute__((always_inline)) {
        acc[r][v] = _mm512_dpbf16_ps(acc[r][v], w[v], value);
      });
    });
  }
};

template <int kRows, int kVectors, int kLines>
void accumulate_tile(const TileArgs& args) {
  const TileArgs a = args;  // a copy that the stores below cannot change
  Chains<kRows, kVectors> chains;
  if (a.start_at_zero) {
    chains.zero();
  } else {
    chains.load(a.acc, a.acc_stride);
  }
  const char* panel = static_cast<const char*>(a.panel);
  const char* x = static_cast<const char*>(a.x);
  const char* ahead = static_cast<const char*>(a.prefetch);
  const int64_t row_bytes = a.x_stride * 2;
  for (int64_t left = a.cols / 2; left > 0;) {
    const int64_t run = kLines > 0 && a.prefetch_steps < left ? a.prefetch_steps : left;
    const char* line = ahead;
    for (int64_t pair = run; pair > 0; --pair) {
      for (int i = 0; i < kLines; ++i) _mm_prefetch(line + 64 * i, _MM_HINT_T1);
      chains.add_pair(panel, x, row_bytes, broadcast_pair);
      panel += kVectors * 64;
      line += kLines * 64;
      x += kPairBytes;
    }
    if (kLines > 0) ahead += a.prefetch_jump;
    left -= run;
  }
  if (a.cols % 2 != 0) chains.add_pair(panel, x, row_bytes, broadcast_last);
  chains.store(a.acc, a.acc_stride);
}

using Tile = void (*)(const TileArgs&);

template <int kRows>
void accumulate_tile_64(const TileArgs& a) {
  static constexpr Tile kTiles[] = {accumulate_tile<kRows, 4, 0>, accumulate_tile<kRows, 4, 1>,
                                    accumulate_tile<kRows, 4, 2>, accumulate_tile<kRows, 4, 4>,
                                    accumulate_tile<kRows, 4, 4>};
  kTiles[a.prefetch_lines](a);
}

void accumulate(const TileArgs& a) {
  static constexpr Tile k64[] = {accumulate_tile_64<1>, accumulate_tile_64<2>,
                                 accumulate_tile_64<3>, accumulate_tile_64<4>,
                                 accumulate_tile_64<5>, accumulate_tile_64<6>};
  static constexpr Tile k32[] = {
      accumulate_tile<1, 2, 0>,  accumulate_tile<2, 2, 0>,  accumulate_tile<3, 2, 0>,
      accumulate_tile<4, 2, 0>,  accumulate_tile<5, 2, 0>,  accumulate_tile<6, 2, 0>,
      accumulate_tile<7, 2, 0>,  accumulate_tile<8, 2, 0>,  accumulate_tile<9, 2, 0>,
      accumulate_tile<10, 2, 0>, accumulate_tile<11, 2, 0>, accumulate_tile<12, 2, 0>};
  static constexpr Tile k16[] = {
      accumulate_tile<1, 1, 0>,  accumulate_tile<2, 1, 0>,  accumulate_tile<3, 1, 0>,
      accumulate_tile<4, 1, 0>,  accumulate_tile<5, 1, 0>,  accumulate_tile<6, 1, 0>,
      accumulate_tile<7, 1, 0>,  accumulate_tile<8, 1, 0>,  accumulate_tile<9, 1, 0>,
      accumulate_tile<10, 1, 0>, accumulate_tile<11, 1, 0>, accumulate_tile<12, 1, 0>};
  const Tile* tiles = a.width == 64 ? k64 : a.width == 32 ? k32 : k16;
  tiles[a.rows - 1](a);
}

GemmKernels make_kernels() {
  GemmKernels kernels = gemm_kernels_avx512(/*bf16=*/true);
  kernels.rows_16 = 12;
  kernels.rows_32 = 12;
  kernels.rows_64 = 6;
  kernels.accumulate = accumulate;
  return kernels;
}

}  // namespace

const GemmKernels& gemm_kernels_avx512_bf16() {
  static const GemmKernels kernels = make_kernels();
  return kernels;
}

}  // namespace strata::ops::cpu
#endif
