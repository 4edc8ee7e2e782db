// SPDX-License-Identifier: Apache-2.0
// Weights in few bits, rounded without bf16 instructions, and products with few rows, which take
// what is unpacked from registers, as f32.
#if defined(__x86_64__)
#include "ops/cpu/narrow_impl_avx512.h"

namespace strata::ops::cpu {
namespace {

// The rounding of to_bf16 (tensor/dtype.h) of numbers.
struct Nearest {
  static __m512i round(__m512 value) {
    const __m512i u = _mm512_castps_si512(value);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
    return _mm512_add_epi32(_mm512_add_epi32(u, _mm512_set1_epi32(0x7fff)), odd);
  }
  // The upper halves, low's first.
  static __m512i to_bf16(__m512 low, __m512 high) {
    alignas(64) static constexpr uint16_t kUpper[32] = {1,  3,  5,  7,  9,  11, 13, 15, 17, 19, 21,
                                                        23, 25, 27, 29, 31, 33, 35, 37, 39, 41, 43,
                                                        45, 47, 49, 51, 53, 55, 57, 59, 61, 63};
    return _mm512_permutex2var_epi16(round(low), _mm512_load_si512(kUpper), round(high));
  }
};
using Path = NarrowAvx512<Nearest>;

constexpr int64_t kWidth = 64;
constexpr int kVectors = 4;
constexpr int kLanes = 16;

// f32 that hold the bf16 next to `a`, but for the sign of a zero, which no product shows.
template <NarrowRounding kRounding>
[[gnu::always_inline]] inline __m512 rounded(__m512 a) {
  if constexpr (kRounding == NarrowRounding::kNone) return a;
  // 65535 a in 24 bits is 65536 a less the first 8 of a's 24 bits.
  const __m512 less = _mm512_mul_ps(a, _mm512_set1_ps(65535.0f));
  return _mm512_fmsub_ps(a, _mm512_set1_ps(65536.0f), less);
}

// The two columns of a pair, sixteen rows of each.
struct Columns {
  __m512 even, odd;
};

// The v-th sixteen rows of a pair, in the order of kRowOrder: the shuffles take two rows of the one
// register, then two of the other.
template <typename K>
[[gnu::always_inline]] inline Columns decode_columns(const uint8_t* codes, int v,
                                                     const Path::Values& values, const float* s,
                                                     const float* m) {
  __m512 low, high;
  if constexpr (K::kCodes == NarrowCodes::kNibbles) {
    const __m512i words = _mm512_loadu_si512(codes);
    low = _mm512_permutexvar_ps(_mm512_srli_epi32(words, 8 * v), values.table);
    high = _mm512_permutexvar_ps(_mm512_srli_epi32(words, 8 * v + 4), values.table);
  } else {
    low = Path::decode<K::kCodes>(codes + 32 * v);
    high = Path::decode<K::kCodes>(codes + 32 * v + 16);
  }
  low = rounded<K::kRounding>(Path::scaled<K::kMin>(low, 32 * v, s, m));
  high = rounded<K::kRounding>(Path::scaled<K::kMin>(high, 32 * v + 16, s, m));
  return {_mm512_shuffle_ps(low, high, 0x88), _mm512_shuffle_ps(low, high, 0xdd)};
}

alignas(64) constexpr int32_t kRowOrder[kLanes] = {0, 1, 8,  9,  2, 3, 10, 11,
                                                   4, 5, 12, 13, 6, 7, 14, 15};
alignas(64) constexpr int32_t kFromRowOrder[kLanes] = {0, 1, 4, 5, 8,  9,  12, 13,
                                                       2, 3, 6, 7, 10, 11, 14, 15};
__m512 ordered(const int32_t* order, __m512 rows) {
  return _mm512_permutexvar_ps(_mm512_load_si512(order), rows);
}

// Group g of the rows of x, as f32.
template <int kRows>
[[gnu::always_inline]] inline void widen_group(const TileArgs& t, int64_t g,
                                               float (&x)[kRows][kNarrowGroup]) {
  unroll<2 * kRows>([&](auto i) __attribute__((always_inline)) {
    const auto* row = static_cast<const uint16_t*>(t.x) + i / 2 * t.x_stride + g * kNarrowGroup;
    const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(row + i % 2 * kLanes));
    _mm512_store_si512(x[i / 2] + i % 2 * kLanes,
                       _mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
  });
}

// The chains of a tile, as a bf16 panel's product has them: element 2p, then 2p + 1.
template <typename K, int kRows>
void accumulate_tile(const NarrowArgs& of, const TileArgs& args) {
  const NarrowArgs a = of;
  const TileArgs t = args;  // copies that the stores below cannot change
  __m512 acc[kRows][kVectors];
  load_chains(t, acc, [](__m512 rows) { return ordered(kRowOrder, rows); });
  GroupScales scales;
  CodeBytes joined;
  alignas(64) float x[kRows][kNarrowGroup];
  const Path::Values values(a.values);
  const bool halves = has_two_scales(a.scale);
  constexpr int64_t kPairBytes = K::kCodes == NarrowCodes::kNibbles ? kWidth : 2 * kWidth;
  for (int64_t g = 0; g < a.count; ++g) {
    load_scales<Path>(a, a.first + g, scales);
    widen_group(t, g, x);
    const uint8_t* codes = codes_of(a, a.first + g, joined);
    for (int64_t pair = 0; pair < kNarrowGroup / 2; ++pair, codes += kPairBytes) {
      fetch_codes_ahead<K::kCodes>(a, codes, kPairBytes);
      const float* const s = scales.s[halves ? pair / 8 : 0];
      unroll<kVectors>([&](auto v) __attribute__((always_inline)) {
        const Columns w = decode_columns<K>(codes, v, values, s, scales.m);
        unroll<kRows>([&](auto r) __attribute__((always_inline)) {
          acc[r][v] = _mm512_fmadd_ps(_mm512_set1_ps(x[r][2 * pair]), w.even, acc[r][v]);
          acc[r][v] = _mm512_fmadd_ps(_mm512_set1_ps(x[r][2 * pair + 1]), w.odd, acc[r][v]);
        });
      });
    }
  }
  store_chains(t, acc, [](__m512 rows) { return ordered(kFromRowOrder, rows); });
}

}  // namespace

void narrow_unpack_avx512(const NarrowArgs& args) { unpack_groups<Path>(args); }

void narrow_accumulate_avx512(const NarrowArgs& args, const TileArgs& t) {
  with_form_and_rows(args, t.rows, [&](auto form, auto rows) {
    accumulate_tile<decltype(form), decltype(rows){}>(args, t);
  });
}

}  // namespace strata::ops::cpu
#endif
