// SPDX-License-Identifier: Apache-2.0
// fp32 products, and bf16 products widened to fp32, with AVX2 and FMA. Tiles of 6 rows x 16 lanes:
// twelve chains in registers; wider panels are done sixteen lanes at a time.
#if defined(__x86_64__)
#include <immintrin.h>

#include <cstring>

#include "ops/cpu/gemm_impl.h"
#include "ops/cpu/panels_avx2.h"
#include "ops/cpu/unroll.h"

namespace strata::ops::cpu {
namespace {

constexpr int kLanes = 8;
constexpr int64_t kTileLanes = 16;

template <int kRows>
using Acc = __m256[kRows][2];

// One step of fp32: sixteen weights and one element of each row.
struct F32 {
  static constexpr int64_t kPair = 1;
  static constexpr int64_t kBytes = 4;
  template <int kRows>
  [[gnu::always_inline]] static void add_step(Acc<kRows>& acc, const char* panel, const char* x,
                                              int64_t row_bytes) {
    const __m256 w0 = _mm256_castsi256_ps(load_256(panel));
    const __m256 w1 = _mm256_castsi256_ps(load_256(panel + 32));
    unroll<kRows>([&](auto r) __attribute__((always_inline)) {
      const __m256 value = _mm256_broadcast_ss(reinterpret_cast<const float*>(x + r * row_bytes));
      acc[r][0] = _mm256_fmadd_ps(value, w0, acc[r][0]);
      acc[r][1] = _mm256_fmadd_ps(value, w1, acc[r][1]);
    });
  }
  template <int kRows>
  [[gnu::always_inline]] static void add_last_element(Acc<kRows>&, const char*, const char*,
                                                      int64_t) {}
};

// One step of bf16: a pair, widened exactly; element 2p, then 2p + 1.
struct Widened {
  static constexpr int64_t kPair = 2;
  static constexpr int64_t kBytes = 2;
  static __m256 low(__m256i pairs) { return _mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16)); }
  static __m256 high(__m256i pairs) {
    return _mm256_castsi256_ps(
        _mm256_and_si256(pairs, _mm256_set1_epi32(static_cast<int>(0xffff0000u))));
  }
  static __m256 element(const char* x) {
    uint16_t bits;
    std::memcpy(&bits, x, sizeof(bits));
    return _mm256_castsi256_ps(_mm256_set1_epi32(static_cast<int>(uint32_t{bits} << 16)));
  }
  // acc += the element at x (of each row) * w.
  template <int kRows>
  [[gnu::always_inline]] static void add_element(Acc<kRows>& acc, __m256 w0, __m256 w1,
                                                 const char* x, int64_t row_bytes) {
    unroll<kRows>([&](auto r) __attribute__((always_inline)) {
      const __m256 value = element(x + r * row_bytes);
      acc[r][0] = _mm256_fmadd_ps(value, w0, acc[r][0]);
      acc[r][1] = _mm256_fmadd_ps(value, w1, acc[r][1]);
    });
  }
  template <int kRows>
  [[gnu::always_inline]] static void add_last_element(Acc<kRows>& acc, const char* panel,
                                                      const char* x, int64_t row_bytes) {
    add_element<kRows>(acc, low(load_256(panel)), low(load_256(panel + 32)), x, row_bytes);
  }
  template <int kRows>
  [[gnu::always_inline]] static void add_step(Acc<kRows>& acc, const char* panel, const char* x,
                                              int64_t row_bytes) {
    add_last_element<kRows>(acc, panel, x, row_bytes);
    add_element<kRows>(acc, high(load_256(panel)), high(load_256(panel + 32)), x + 2, row_bytes);
  }
};

// Sixteen lanes of a panel. The chains are unrolled by hand, see cpu/unroll.h.
template <typename Step, int kRows>
void accumulate_tile(const TileArgs& args, int64_t lane) {
  const TileArgs a = args;  // a copy that the stores below cannot change
  Acc<kRows> acc;
  float* out = a.acc + lane;
  unroll<kRows>([&](auto r) __attribute__((always_inline)) {
    unroll<2>([&](auto v) __attribute__((always_inline)) {
      acc[r][v] = a.start_at_zero ? _mm256_setzero_ps()
                                  : _mm256_loadu_ps(out + r * a.acc_stride + kLanes * v);
    });
  });
  const char* panel = static_cast<const char*>(a.panel) + lane * 4;
  const char* x = static_cast<const char*>(a.x);
  const int64_t row_bytes = a.x_stride * Step::kBytes;
  for (int64_t step = a.cols / Step::kPair; step > 0; --step) {
    Step::template add_step<kRows>(acc, panel, x, row_bytes);
    panel += a.width * 4;
    x += Step::kPair * Step::kBytes;
  }
  if (a.cols % Step::kPair != 0) Step::template add_last_element<kRows>(acc, panel, x, row_bytes);
  unroll<kRows>([&](auto r) __attribute__((always_inline)) {
    unroll<2>([&](auto v) __attribute__((always_inline)) {
      _mm256_storeu_ps(out + r * a.acc_stride + kLanes * v, acc[r][v]);
    });
  });
}

template <typename Step>
void accumulate(const TileArgs& a) {
  using Tile = void (*)(const TileArgs&, int64_t);
  static constexpr Tile kTiles[] = {accumulate_tile<Step, 1>, accumulate_tile<Step, 2>,
                                    accumulate_tile<Step, 3>, accumulate_tile<Step, 4>,
                                    accumulate_tile<Step, 5>, accumulate_tile<Step, 6>};
  for (int64_t lane = 0; lane < a.width; lane += kTileLanes) kTiles[a.rows - 1](a, lane);
}

// The first `left` of eight 16-bit elements, zeros behind them.
inline __m128i load_first_u16(const void* data, int64_t left) {
  if (left >= kLanes) return _mm_loadu_si128(static_cast<const __m128i*>(data));
  alignas(16) uint16_t buffer[kLanes] = {};
  if (left > 0) std::memcpy(buffer, data, static_cast<size_t>(left) * 2);
  return _mm_load_si128(reinterpret_cast<const __m128i*>(buffer));
}

inline void store_first_u16(void* data, __m128i value, int64_t left) {
  if (left >= kLanes) return _mm_storeu_si128(static_cast<__m128i*>(data), value);
  alignas(16) uint16_t buffer[kLanes];
  _mm_store_si128(reinterpret_cast<__m128i*>(buffer), value);
  std::memcpy(data, buffer, static_cast<size_t>(left) * 2);
}

// The epilogue's arithmetic, of eight columns of which `left` are there.
struct Epilogue {
  static constexpr int64_t kCount = kLanes;
  static __m256 set1(float value) { return _mm256_set1_ps(value); }
  static __m256 mul(__m256 a, __m256 b) { return _mm256_mul_ps(a, b); }
  static __m256 add(__m256 a, __m256 b) { return _mm256_add_ps(a, b); }
  static __m256 load(const float* data) { return _mm256_loadu_ps(data); }
  static __m256 load(const float* data, int64_t left) {
    return _mm256_maskload_ps(data, columns_mask(left));
  }
  static __m256 load(const uint16_t* data, int64_t left) {
    return _mm256_castsi256_ps(
        _mm256_slli_epi32(_mm256_cvtepu16_epi32(load_first_u16(data, left)), 16));
  }
  static void store(float* data, __m256 value, int64_t left) {
    _mm256_maskstore_ps(data, columns_mask(left), value);
  }
  static void store(uint16_t* data, __m256 value, int64_t left) {
    store_first_u16(data, narrow(round_to_bf16(value)), left);
  }
};

// A 32-bit element of src is (lane n; columns k, k + 1), one of dst is (lanes n, n + 1; column k):
// after the byte shuffle a 64-bit element holds the dst pairs of columns k and k + 1.
void transpose_panel_bf16(const TransposeArgs& a) {
  const auto* src = static_cast<const uint32_t*>(a.panel) + a.col_begin / 2 * a.width;
  auto* dst = static_cast<uint32_t*>(a.dst);
  const __m256i mix = _mm256_broadcastsi128_si256(
      _mm_setr_epi8(0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15));
  const int64_t pairs = a.cols / 2;
  for (int64_t lane = 0; lane < a.width; lane += 8) {
    for (int64_t pair = 0; pair < a.dst_width / 2; pair += 4) {
      __m256i in[4];
      for (int i = 0; i < 4; ++i) {
        in[i] = pair + i < pairs
                    ? _mm256_shuffle_epi8(load_256(src + (pair + i) * a.width + lane), mix)
                    : _mm256_setzero_si256();
      }
      for (int j = 0; j < 2; ++j) {
        const __m256i low =
            j == 0 ? _mm256_unpacklo_epi64(in[0], in[1]) : _mm256_unpackhi_epi64(in[0], in[1]);
        const __m256i high =
            j == 0 ? _mm256_unpacklo_epi64(in[2], in[3]) : _mm256_unpackhi_epi64(in[2], in[3]);
        uint32_t* out = dst + (lane / 2 + j) * a.dst_width + pair * 2;
        store_256(out, _mm256_permute2x128_si256(low, high, 0x20));
        store_256(out + 2 * a.dst_width, _mm256_permute2x128_si256(low, high, 0x31));
      }
    }
  }
}

// Eight columns of a pair of rows, interleaved.
inline __m256i load_step_bf16(const StepArgs& a, int64_t step, int64_t col) {
  const uint16_t* row = static_cast<const uint16_t*>(a.x) + a.first[step] * a.x_stride + col;
  const int64_t left = a.cols - col;
  if (a.rows[step] == 0) return _mm256_setzero_si256();
  const __m256i low = _mm256_cvtepu16_epi32(load_first_u16(row, left));
  if (a.rows[step] == 1) return low;
  const __m256i high = _mm256_cvtepu16_epi32(load_first_u16(row + a.x_stride, left));
  return _mm256_or_si256(low, _mm256_slli_epi32(high, 16));
}

template <LoadStep<Words> kLoad>
void pack_tokens_as_panel(const StepArgs& a) {
  auto* dst = static_cast<uint32_t*>(a.dst);
  for (int64_t step = 0; step < a.steps; ++step, dst += a.dst_stride) {
    for (int64_t col = 0; col < a.dst_stride; col += kLanes)
      store_256(dst + col, kLoad(a, step, col));
  }
}

constexpr GemmKernels kF32 = {
    .pair = 1,
    .rows_16 = 6,
    .rows_32 = 6,
    .rows_64 = 6,
    .accumulate = accumulate<F32>,
    .apply_epilogue = apply_epilogue<Epilogue>,
    .transpose_panel = transpose_panel_f32<Words>,
    .pack_tokens_as_panel = pack_tokens_as_panel<load_step_f32<Words>>,
    .pack_tokens_as_rows = pack_tokens_as_rows<Words, load_step_f32<Words>, 1>,
    .transpose_f32 = transpose_f32<Words>};
constexpr GemmKernels kBF16 = {.pair = 2,
                               .rows_16 = 6,
                               .rows_32 = 6,
                               .rows_64 = 6,
                               .accumulate = accumulate<Widened>,
                               .apply_epilogue = apply_epilogue<Epilogue>,
                               .transpose_panel = transpose_panel_bf16,
                               .pack_tokens_as_panel = pack_tokens_as_panel<load_step_bf16>,
                               .pack_tokens_as_rows = pack_tokens_as_rows<Words, load_step_bf16, 2>,
                               .transpose_f32 = transpose_f32<Words>};

}  // namespace

const GemmKernels& gemm_kernels_avx2(bool bf16) { return bf16 ? kBF16 : kF32; }

}  // namespace strata::ops::cpu
#endif
