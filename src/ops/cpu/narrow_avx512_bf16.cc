// SPDX-License-Identifier: Apache-2.0
// Weights in few bits with vcvtne2ps2bf16, and products with few rows, which take what is unpacked
// from registers.
#if defined(__x86_64__)
#include "ops/cpu/narrow_impl_avx512.h"

namespace strata::ops::cpu {
namespace {

struct Instruction {
  static __m512i to_bf16(__m512 low, __m512 high) {
    return (__m512i)_mm512_cvtne2ps_pbh(high, low);
  }
};
using Path = NarrowAvx512<Instruction>;

constexpr int64_t kWidth = 64;
constexpr int kVectors = 4;

// The weights of a pair of columns, 64 lanes: what unpacking them stores.
template <NarrowCodes kCodes, bool kMin>
[[gnu::always_inline]] inline void decode_pair(const uint8_t* codes, const Path::Values& values,
                                               const float* s, const float* m,
                                               __m512bh (&w)[kVectors]) {
  if constexpr (kCodes != NarrowCodes::kNibbles) {
    unroll<kVectors>([&](auto v) __attribute__((always_inline)) {
      const __m512 low = Path::decode<kCodes>(codes + 32 * v);
      const __m512 high = Path::decode<kCodes>(codes + 32 * v + 16);
      w[v] = (__m512bh)Instruction::to_bf16(Path::scaled<kMin>(low, 32 * v, s, m),
                                            Path::scaled<kMin>(high, 32 * v + 16, s, m));
    });
  } else {
    const __m512i words = _mm512_loadu_si512(codes);
    unroll<kVectors>([&](auto v) __attribute__((always_inline)) {
      const __m512 low = _mm512_permutexvar_ps(_mm512_srli_epi32(words, 8 * v), values.table);
      const __m512 high = _mm512_permutexvar_ps(_mm512_srli_epi32(words, 8 * v + 4), values.table);
      w[v] = (__m512bh)Instruction::to_bf16(Path::scaled<kMin>(low, 32 * v, s, m),
                                            Path::scaled<kMin>(high, 32 * v + 16, s, m));
    });
  }
}

// The chains of a tile over groups of a panel, in the order of a bf16 panel's product. Every loop
// over registers is unrolled by hand, see cpu/unroll.h.
template <NarrowCodes kCodes, bool kMin, int kRows>
void accumulate_tile(const NarrowArgs& of, const TileArgs& args) {
  const NarrowArgs a = of;
  const TileArgs t = args;  // copies that the stores below cannot change
  __m512 acc[kRows][kVectors];
  const auto as_it_is = [](__m512 rows) __attribute__((always_inline)) { return rows; };
  load_chains(t, acc, as_it_is);
  GroupScales scales;
  CodeBytes joined;
  const Path::Values values(a.values);
  const bool halves = has_two_scales(a.scale);
  const char* x = static_cast<const char*>(t.x);
  const int64_t row_bytes = t.x_stride * 2;
  constexpr int64_t kPairBytes = kCodes == NarrowCodes::kNibbles ? kWidth : 2 * kWidth;
  for (int64_t g = a.first; g < a.first + a.count; ++g) {
    load_scales<Path>(a, g, scales);
    const uint8_t* codes = codes_of(a, g, joined);
    for (int64_t pair = 0; pair < kNarrowGroup / 2; ++pair) {
      const float* const s = scales.s[halves ? pair / 8 : 0];
      __m512bh w[kVectors];
      fetch_codes_ahead<kCodes>(a, codes, kPairBytes);
      decode_pair<kCodes, kMin>(codes, values, s, scales.m, w);
      unroll<kRows>([&](auto r) __attribute__((always_inline)) {
        int32_t bits;
        __builtin_memcpy(&bits, x + r * row_bytes, sizeof(bits));
        const auto value = (__m512bh)_mm512_set1_epi32(bits);
        unroll<kVectors>([&](auto v) __attribute__((always_inline)) {
          acc[r][v] = _mm512_dpbf16_ps(acc[r][v], w[v], value);
        });
      });
      codes += kPairBytes;
      x += 4;
    }
  }
  store_chains(t, acc, as_it_is);
}

}  // namespace

void narrow_unpack_avx512_bf16(const NarrowArgs& args) { unpack_groups<Path>(args); }

void narrow_accumulate_avx512_bf16(const NarrowArgs& a, const TileArgs& t) {
  with_form_and_rows(a, t.rows, [&](auto form, auto rows) {
    using Form = decltype(form);
    accumulate_tile<Form::kCodes, Form::kMin, decltype(rows){}>(a, t);
  });
}

}  // namespace strata::ops::cpu
#endif
