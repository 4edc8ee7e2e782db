// SPDX-License-Identifier: Apache-2.0
// fp32 products, and bf16 products widened to fp32, with AVX-512; and what the avx512_bf16 path
// shares: the epilogue and the layouts made on the fly.
#if defined(__x86_64__)
#include <immintrin.h>

#include <cstring>

#include "ops/cpu/gemm_impl.h"
#include "ops/cpu/panels_avx512.h"
#include "ops/cpu/unroll.h"

namespace strata::ops::cpu {
namespace {

constexpr int kLanes = 16;

// One step of fp32: the weights of sixteen lanes and one element of a row.
struct F32 {
  static constexpr int kTallest = 6;  // rows of a tile of 64 lanes
  static constexpr int64_t kPair = 1;
  static constexpr int64_t kBytes = 4;  // of an element
  struct Weight {
    __m512 w;
  };
  static Weight load(const char* panel) { return {_mm512_load_ps(panel)}; }
  static __m512 add_step(__m512 acc, Weight w, const char* x) {
    float value;
    std::memcpy(&value, x, sizeof(value));
    return _mm512_fmadd_ps(_mm512_set1_ps(value), w.w, acc);
  }
  static __m512 add_last_element(__m512 acc, Weight, const char*) { return acc; }
};

// One step of bf16: a pair, widened exactly; element 2p, then 2p + 1.
struct Widened {
  static constexpr int kTallest = 5;
  static constexpr int64_t kPair = 2;
  static constexpr int64_t kBytes = 2;
  struct Weight {
    __m512 even;
    __m512 odd;
  };
  static __m512 low(__m512i pairs) { return _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16)); }
  static __m512 high(__m512i pairs) {
    return _mm512_castsi512_ps(
        _mm512_and_si512(pairs, _mm512_set1_epi32(static_cast<int>(0xffff0000u))));
  }
  static Weight load(const char* panel) {
    const __m512i pairs = _mm512_load_si512(panel);
    return {low(pairs), high(pairs)};
  }
  static __m512 element(const char* x) {
    uint16_t bits;
    std::memcpy(&bits, x, sizeof(bits));
    return _mm512_castsi512_ps(_mm512_set1_epi32(static_cast<int>(uint32_t{bits} << 16)));
  }
  static __m512 add_step(__m512 acc, Weight w, const char* x) {
    int32_t bits;
    std::memcpy(&bits, x, sizeof(bits));
    const __m512i pairs = _mm512_set1_epi32(bits);
    return _mm512_fmadd_ps(high(pairs), w.odd, _mm512_fmadd_ps(low(pairs), w.even, acc));
  }
  static __m512 add_last_element(__m512 acc, Weight w, const char* x) {
    return _mm512_fmadd_ps(element(x), w.even, acc);
  }
};

// The chains of a tile. Every loop is unrolled by hand, see cpu/unroll.h.
template <typename Step, int kRows, int kVectors>
struct Chains {
  __m512 acc[kRows][kVectors];

  [[gnu::always_inline]] void load_or_zero(const TileArgs& a) {
    unroll<kRows>([&](auto r) __attribute__((always_inline)) {
      unroll<kVectors>([&](auto v) __attribute__((always_inline)) {
        acc[r][v] = a.start_at_zero ? _mm512_setzero_ps()
                                    : _mm512_loadu_ps(a.acc + r * a.acc_stride + kLanes * v);
      });
    });
  }
  [[gnu::always_inline]] void store(const TileArgs& a) const {
    unroll<kRows>([&](auto r) __attribute__((always_inline)) {
      unroll<kVectors>([&](auto v) __attribute__((always_inline)) {
        _mm512_storeu_ps(a.acc + r * a.acc_stride + kLanes * v, acc[r][v]);
      });
    });
  }
  [[gnu::always_inline]] void add_step(const char* panel, const char* x, int64_t row_bytes) {
    typename Step::Weight w[kVectors];
    unroll<kVectors>([&](auto v)
                         __attribute__((always_inline)) { w[v] = Step::load(panel + v * 64); });
    unroll<kRows>([&](auto r) __attribute__((always_inline)) {
      unroll<kVectors>([&](auto v) __attribute__((always_inline)) {
        acc[r][v] = Step::add_step(acc[r][v], w[v], x + r * row_bytes);
      });
    });
  }
  [[gnu::always_inline]] void add_last_element(const char* panel, const char* x,
                                               int64_t row_bytes) {
    unroll<kVectors>([&](auto v) __attribute__((always_inline)) {
      const typename Step::Weight w = Step::load(panel + v * 64);
      unroll<kRows>([&](auto r) __attribute__((always_inline)) {
        acc[r][v] = Step::add_last_element(acc[r][v], w, x + r * row_bytes);
      });
    });
  }
};

template <typename Step, int kRows, int kVectors>
void accumulate_tile(const TileArgs& args) {
  const TileArgs a = args;  // a copy that the stores below cannot change
  Chains<Step, kRows, kVectors> chains;
  chains.load_or_zero(a);
  const char* panel = static_cast<const char*>(a.panel);
  const char* x = static_cast<const char*>(a.x);
  const char* ahead = static_cast<const char*>(a.prefetch);
  const int64_t line_bytes = a.prefetch_lines * 64;
  const int64_t row_bytes = a.x_stride * Step::kBytes;
  for (int64_t left = a.cols / Step::kPair; left > 0;) {
    const int64_t run = line_bytes > 0 && a.prefetch_steps < left ? a.prefetch_steps : left;
    const char* line = ahead;
    for (int64_t step = run; step > 0; --step) {
      for (int64_t b = 0; b < line_bytes; b += 64) _mm_prefetch(line + b, _MM_HINT_T1);
      chains.add_step(panel, x, row_bytes);
      panel += kVectors * 64;
      line += line_bytes;
      x += Step::kPair * Step::kBytes;
    }
    if (line_bytes > 0) ahead += a.prefetch_jump;
    left -= run;
  }
  if (a.cols % Step::kPair != 0) chains.add_last_element(panel, x, row_bytes);
  chains.store(a);
}

template <typename Step>
void accumulate(const TileArgs& a) {
  using Tile = void (*)(const TileArgs&);
  static constexpr Tile k64[] = {
      accumulate_tile<Step, 1, 4>, accumulate_tile<Step, 2, 4>,
      accumulate_tile<Step, 3, 4>, accumulate_tile<Step, 4, 4>,
      accumulate_tile<Step, 5, 4>, accumulate_tile<Step, Step::kTallest, 4>};
  static constexpr Tile k32[] = {accumulate_tile<Step, 1, 2>, accumulate_tile<Step, 2, 2>,
                                 accumulate_tile<Step, 3, 2>, accumulate_tile<Step, 4, 2>,
                                 accumulate_tile<Step, 5, 2>, accumulate_tile<Step, 6, 2>,
                                 accumulate_tile<Step, 7, 2>, accumulate_tile<Step, 8, 2>};
  static constexpr Tile k16[] = {accumulate_tile<Step, 1, 1>, accumulate_tile<Step, 2, 1>,
                                 accumulate_tile<Step, 3, 1>, accumulate_tile<Step, 4, 1>,
                                 accumulate_tile<Step, 5, 1>, accumulate_tile<Step, 6, 1>,
                                 accumulate_tile<Step, 7, 1>, accumulate_tile<Step, 8, 1>};
  const Tile* tiles = a.width == 64 ? k64 : a.width == 32 ? k32 : k16;
  tiles[a.rows - 1](a);
}

// The epilogue's arithmetic, of sixteen columns of which `left` are there.
struct Epilogue {
  static constexpr int64_t kCount = kLanes;
  static __m512 set1(float value) { return _mm512_set1_ps(value); }
  static __m512 mul(__m512 a, __m512 b) { return _mm512_mul_ps(a, b); }
  static __m512 add(__m512 a, __m512 b) { return _mm512_add_ps(a, b); }
  static __m512 load(const float* data) { return _mm512_loadu_ps(data); }
  static __m512 load(const float* data, int64_t left) {
    return _mm512_maskz_loadu_ps(columns_mask(left), data);
  }
  static __m512 load(const uint16_t* data, int64_t left) {
    return widen(_mm256_maskz_loadu_epi16(columns_mask(left), data));
  }
  static void store(float* data, __m512 value, int64_t left) {
    _mm512_mask_storeu_ps(data, columns_mask(left), value);
  }
  static void store(uint16_t* data, __m512 value, int64_t left) {
    _mm256_mask_storeu_epi16(data, columns_mask(left), round_to_bf16(value));
  }
};

// A 32-bit element of src is (lane n; columns k, k + 1), one of dst is (lanes n, n + 1; column k).
// Eight loads hold 16 lanes x 16 columns; after the byte shuffle a 64-bit element holds the dst
// pairs of columns k and k + 1 for two lanes, and an 8 x 8 transpose of those finishes.
void transpose_panel_bf16(const TransposeArgs& a) {
  const auto* src = static_cast<const uint32_t*>(a.panel) + a.col_begin / 2 * a.width;
  auto* dst = static_cast<uint32_t*>(a.dst);
  const __m512i mix =
      _mm512_broadcast_i32x4(_mm_setr_epi8(0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15));
  const int64_t pairs = a.cols / 2;
  for (int64_t lane = 0; lane < a.width; lane += 16) {
    for (int64_t pair = 0; pair < a.dst_width / 2; pair += 8) {
      __m512i in[8];
      for (int i = 0; i < 8; ++i) {
        in[i] = pair + i < pairs
                    ? _mm512_shuffle_epi8(_mm512_load_si512(src + (pair + i) * a.width + lane), mix)
                    : _mm512_setzero_si512();
      }
      __m512i t[8];  // t[i] (i even): 64-bit elements 0, 2, 4, 6 of in[i], in[i + 1], alternating
      for (int i = 0; i < 8; i += 2) {
        t[i] = _mm512_unpacklo_epi64(in[i], in[i + 1]);
        t[i + 1] = _mm512_unpackhi_epi64(in[i], in[i + 1]);
      }
      // 128-bit lane l of t[2 g + j]: lane pair 2 l + j of column pairs 2 g, 2 g + 1.
      for (int j = 0; j < 2; ++j) {
        const __m512i even_low = _mm512_shuffle_i64x2(t[j], t[2 + j], 0x88);
        const __m512i even_high = _mm512_shuffle_i64x2(t[4 + j], t[6 + j], 0x88);
        const __m512i odd_low = _mm512_shuffle_i64x2(t[j], t[2 + j], 0xdd);
        const __m512i odd_high = _mm512_shuffle_i64x2(t[4 + j], t[6 + j], 0xdd);
        uint32_t* out = dst + (lane / 2 + j) * a.dst_width + pair * 2;
        _mm512_store_si512(out, _mm512_shuffle_i64x2(even_low, even_high, 0x88));
        _mm512_store_si512(out + 4 * a.dst_width, _mm512_shuffle_i64x2(even_low, even_high, 0xdd));
        _mm512_store_si512(out + 2 * a.dst_width, _mm512_shuffle_i64x2(odd_low, odd_high, 0x88));
        _mm512_store_si512(out + 6 * a.dst_width, _mm512_shuffle_i64x2(odd_low, odd_high, 0xdd));
      }
    }
  }
}

// Sixteen columns of a pair of rows, interleaved.
inline __m512i load_step_bf16(const StepArgs& a, int64_t step, int64_t col) {
  const uint16_t* row = static_cast<const uint16_t*>(a.x) + a.first[step] * a.x_stride + col;
  const __mmask16 mask = columns_mask(a.cols - col);
  const __mmask16 first = a.rows[step] > 0 ? mask : 0;
  const __mmask16 second = a.rows[step] > 1 ? mask : 0;
  const __m512i low = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(first, row));
  const __m512i high = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(second, row + a.x_stride));
  return _mm512_or_si512(low, _mm512_slli_epi32(high, 16));
}

// The rows of a later step: rows lie too far apart for the hardware to foresee.
inline void prefetch_step(const StepArgs& a, int64_t step, int64_t element_bytes) {
  if (step >= a.steps) return;
  const int64_t row_bytes = a.x_stride * element_bytes;
  const char* row = static_cast<const char*>(a.x) + a.first[step] * row_bytes;
  for (int64_t at = 0; at < a.cols * element_bytes; at += 64) {
    _mm_prefetch(row + at, _MM_HINT_T0);
    if (element_bytes == 2) _mm_prefetch(row + row_bytes + at, _MM_HINT_T0);
  }
}

void pack_tokens_as_panel_f32(const StepArgs& a) {
  auto* dst = static_cast<uint32_t*>(a.dst);
  for (int64_t step = 0; step < a.steps; ++step, dst += a.dst_stride) {
    prefetch_step(a, step + 8, 4);
    for (int64_t col = 0; col < a.dst_stride; col += kLanes) {
      _mm512_store_si512(dst + col, load_step_f32<Words>(a, step, col));
    }
  }
}

// Pairs of rows interleaved 32 columns at a time.
void pack_tokens_as_panel_bf16(const StepArgs& a) {
  alignas(64) static constexpr uint16_t kLow[32] = {0,  32, 1,  33, 2,  34, 3,  35, 4,  36, 5,
                                                    37, 6,  38, 7,  39, 8,  40, 9,  41, 10, 42,
                                                    11, 43, 12, 44, 13, 45, 14, 46, 15, 47};
  const __m512i low = _mm512_load_si512(kLow);
  const __m512i high = _mm512_add_epi16(low, _mm512_set1_epi16(16));
  auto* dst = static_cast<uint32_t*>(a.dst);
  for (int64_t step = 0; step < a.steps; ++step, dst += a.dst_stride) {
    const uint16_t* row = static_cast<const uint16_t*>(a.x) + a.first[step] * a.x_stride;
    const __mmask32 first = a.rows[step] > 0 ? 0xffffffffu : 0;
    const __mmask32 second = a.rows[step] > 1 ? 0xffffffffu : 0;
    prefetch_step(a, step + 8, 2);
    int64_t col = 0;
    for (; col + 32 <= a.cols; col += 32) {
      const __m512i x = _mm512_maskz_loadu_epi16(first, row + col);
      const __m512i y = _mm512_maskz_loadu_epi16(second, row + a.x_stride + col);
      _mm512_store_si512(dst + col, _mm512_permutex2var_epi16(x, low, y));
      _mm512_store_si512(dst + col + 16, _mm512_permutex2var_epi16(x, high, y));
    }
    for (; col < a.dst_stride; col += kLanes) {
      _mm512_store_si512(dst + col, load_step_bf16(a, step, col));
    }
  }
}

constexpr GemmKernels kF32 = {
    .pair = 1,
    .rows_16 = 8,
    .rows_32 = 8,
    .rows_64 = F32::kTallest,
    .accumulate = accumulate<F32>,
    .apply_epilogue = apply_epilogue<Epilogue>,
    .transpose_panel = transpose_panel_f32<Words>,
    .pack_tokens_as_panel = pack_tokens_as_panel_f32,
    .pack_tokens_as_rows = pack_tokens_as_rows<Words, load_step_f32<Words>, 1>,
    .transpose_f32 = transpose_f32<Words>};
constexpr GemmKernels kBF16 = {.pair = 2,
                               .rows_16 = 8,
                               .rows_32 = 8,
                               .rows_64 = Widened::kTallest,
                               .accumulate = accumulate<Widened>,
                               .apply_epilogue = apply_epilogue<Epilogue>,
                               .transpose_panel = transpose_panel_bf16,
                               .pack_tokens_as_panel = pack_tokens_as_panel_bf16,
                               .pack_tokens_as_rows = pack_tokens_as_rows<Words, load_step_bf16, 2>,
                               .transpose_f32 = transpose_f32<Words>};

}  // namespace

const GemmKernels& gemm_kernels_avx512(bool bf16) { return bf16 ? kBF16 : kF32; }

}  // namespace strata::ops::cpu
#endif
