// SPDX-License-Identifier: Apache-2.0
// Weights in few bits, a pair of columns of 16 rows at a time: both columns' values as f32 that
// hold a bf16, of which unpacking stores the upper halves, and which products with few rows take
// from registers.
#if defined(__x86_64__)
#include <immintrin.h>

#include "ops/cpu/narrow_impl.h"
#include "ops/cpu/unroll.h"

namespace strata::ops::cpu {
namespace {

constexpr int64_t kWidth = 16;
constexpr int kLanes = 8;

struct Path {
  static constexpr int64_t kCount = kLanes;
  static constexpr int64_t kTimes = 1;
  static __m128i load_8(const uint8_t* p) {
    return _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
  }
  static __m256 half(const uint8_t* p) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
  static __m256 i8(const uint8_t* p) { return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(load_8(p))); }
  static __m256 u8(const uint8_t* p) { return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(load_8(p))); }
  static __m256 f32(const uint8_t* p) { return _mm256_loadu_ps(reinterpret_cast<const float*>(p)); }
  // 2^(e - 128), half of what E8M0 says; subnormal where e is below 2.
  static __m256 half_e8m0(const uint8_t* p) {
    const __m256i e = _mm256_cvtepu8_epi32(load_8(p));
    const __m256i normal = _mm256_slli_epi32(_mm256_sub_epi32(e, _mm256_set1_epi32(1)), 23);
    const __m256i small = _mm256_sllv_epi32(_mm256_set1_epi32(0x200000), e);
    const __m256i is_small = _mm256_cmpgt_epi32(_mm256_set1_epi32(2), e);
    return _mm256_castsi256_ps(_mm256_blendv_epi8(normal, small, is_small));
  }
  // Without a sign, / 256.
  static __m256 e4m3(const uint8_t* p) {
    return _mm256_cvtph_ps(_mm_slli_epi16(_mm_cvtepu8_epi16(load_8(p)), 7));
  }
  static __m256 mul(__m256 a, __m256 b) { return _mm256_mul_ps(a, b); }
  static __m256 fma(__m256 a, __m256 b, __m256 c) { return _mm256_fmadd_ps(a, b, c); }
  static __m256 negative(__m256 a) { return _mm256_xor_ps(a, _mm256_set1_ps(-0.0f)); }
  static void store_scale(float* dst, __m256 value) { _mm256_store_ps(dst, value); }
};

// The two columns of a pair, eight rows a register.
struct Pair {
  __m256i even[2], odd[2];
};

__m256i load(const uint8_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
__m256i upper(__m256i words) {
  return _mm256_and_si256(words, _mm256_set1_epi32(static_cast<int>(0xffff0000u)));
}

// What looks up, mixing halves of registers, leaves rows 0-3 and 8-11 in one, the others in the
// other. This brings rows from one order to the other.
template <NarrowCodes kCodes, typename Register>
[[gnu::always_inline]] inline void swap_nibble_row_order(Register (&v)[2]) {
  if constexpr (kCodes != NarrowCodes::kNibbles) return;
  const __m256 first = (__m256)v[0], second = (__m256)v[1];
  v[0] = (Register)_mm256_permute2f128_ps(first, second, 0x20);
  v[1] = (Register)_mm256_permute2f128_ps(first, second, 0x31);
}

// The sixteen values of a code of 4 bits, byte by byte.
struct Values {
  __m256i byte[4];
  explicit Values(const float* of) : byte{} {
    if (of == nullptr) return;
    const __m128i by_byte = _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    __m128i four[4];
    for (int i = 0; i < 4; ++i) {
      four[i] = _mm_shuffle_epi8(
          _mm_load_si128(reinterpret_cast<const __m128i*>(of + static_cast<ptrdiff_t>(4) * i)),
          by_byte);
    }
    for (int b = 0; b < 4; b += 2) {
      const bool low = b == 0;
      const __m128i first =
          low ? _mm_unpacklo_epi32(four[0], four[1]) : _mm_unpackhi_epi32(four[0], four[1]);
      const __m128i last =
          low ? _mm_unpacklo_epi32(four[2], four[3]) : _mm_unpackhi_epi32(four[2], four[3]);
      byte[b] = _mm256_broadcastsi128_si256(_mm_unpacklo_epi64(first, last));
      byte[b + 1] = _mm256_broadcastsi128_si256(_mm_unpackhi_epi64(first, last));
    }
  }
};

// The values of a pair's codes, a byte each. Where they are bf16 values, their lower halves are 0.
template <bool kAreBf16>
[[gnu::always_inline]] inline Pair look_up_values(const Values& values, __m256i codes) {
  const auto mixed = [&](int b, auto high) __attribute__((always_inline)) {
    const __m256i first = _mm256_shuffle_epi8(values.byte[b], codes);
    const __m256i second = _mm256_shuffle_epi8(values.byte[b + 1], codes);
    return high == 0 ? _mm256_unpacklo_epi8(first, second) : _mm256_unpackhi_epi8(first, second);
  };
  Pair out;
  unroll<2>([&](auto v) __attribute__((always_inline)) {
    const __m256i high = mixed(2, v);
    out.even[v] = _mm256_slli_epi32(high, 16);
    if constexpr (kAreBf16) {
      out.odd[v] = upper(high);
    } else {
      const __m256i low = mixed(0, v);
      out.even[v] = _mm256_blend_epi16(out.even[v], low, 0x55);
      out.odd[v] = _mm256_blend_epi16(high, _mm256_srli_epi32(low, 16), 0x55);
    }
  });
  return out;
}

template <NarrowCodes kCodes>
[[gnu::always_inline]] inline Pair decode_byte_codes(const uint8_t* codes) {
  Pair out;
  unroll<2>([&](auto v) __attribute__((always_inline)) {
    const __m256i words =
        _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(codes + kWidth * v)));
    if constexpr (kCodes == NarrowCodes::kInt8) {
      out.even[v] =
          (__m256i)_mm256_cvtepi32_ps(_mm256_srai_epi32(_mm256_slli_epi32(words, 16), 16));
      out.odd[v] = (__m256i)_mm256_cvtepi32_ps(_mm256_srai_epi32(words, 16));
    } else {
      // Sign, exponent and mantissa where f32 has them: 2^-120 times the value, whose subnormals
      // are f32's.
      const __m256i fields = _mm256_set1_epi32(static_cast<int>(0x87f00000u));
      out.even[v] = _mm256_and_si256(_mm256_slli_epi32(words, 20), fields);
      out.odd[v] = _mm256_and_si256(_mm256_slli_epi32(words, 4), fields);
    }
  });
  return out;
}

// f32 that hold the bf16 next to `a`, as to_bf16 (tensor/dtype.h) rounds numbers; kSigned: of a
// zero too, whose sign no product shows.
template <NarrowRounding kRounding, bool kSigned>
[[gnu::always_inline]] inline __m256i round_as_bf16(__m256 a) {
  if constexpr (kRounding == NarrowRounding::kNone) return (__m256i)a;
  if constexpr (kSigned) {
    // Dekker's splitting: the first 8 of 24 bits.
    const __m256 large = _mm256_mul_ps(a, _mm256_set1_ps(65537.0f));
    return (__m256i)_mm256_sub_ps(large, _mm256_sub_ps(large, a));
  }
  // 65535 a in 24 bits is 65536 a less the first 8 of a's 24 bits.
  const __m256 less = _mm256_mul_ps(a, _mm256_set1_ps(65535.0f));
  return (__m256i)_mm256_fmsub_ps(a, _mm256_set1_ps(65536.0f), less);
}

// Scales of values that decode_byte_codes<kE4m3> leaves 2^-120 times as large.
[[gnu::always_inline]] inline void rescale_e4m3(GroupScales& scales) {
  unroll<2>([&](auto v) __attribute__((always_inline)) {
    float* const s = scales.s[0] + kLanes * v;
    _mm256_store_ps(s, _mm256_mul_ps(_mm256_load_ps(s), _mm256_set1_ps(0x1p112f)));
  });
}

// Pair p of the two that `codes` starts with, before it is scaled.
template <typename K>
[[gnu::always_inline]] inline Pair decode_pair(const Values& values, const uint8_t* codes, int p) {
  if constexpr (K::kCodes == NarrowCodes::kNibbles) {
    const __m256i bytes = p == 0 ? load(codes) : _mm256_srli_epi16(load(codes), 4);
    return look_up_values<K::kAreBf16>(values, _mm256_and_si256(bytes, _mm256_set1_epi8(15)));
  } else {
    return decode_byte_codes<K::kCodes>(codes + 2 * kWidth * p);
  }
}

// value s + m of both columns, rounded.
template <typename K, bool kSigned>
[[gnu::always_inline]] inline Pair scale_and_round(Pair pair, const __m256 (&s)[2],
                                                   const __m256 (&m)[2]) {
  const auto scaled = [&](__m256i value, int v) __attribute__((always_inline)) {
    const auto x = (__m256)value;
    return round_as_bf16<K::kRounding, kSigned>(K::kMin ? _mm256_fmadd_ps(x, s[v], m[v])
                                                        : _mm256_mul_ps(x, s[v]));
  };
  unroll<2>([&](auto v) __attribute__((always_inline)) {
    pair.even[v] = scaled(pair.even[v], v);
    pair.odd[v] = scaled(pair.odd[v], v);
  });
  return pair;
}

// begin(group), then body(columns before this pair, values) for each pair of each group, with the
// rows of registers as swap_nibble_row_order<K::kCodes> has them.
template <typename K, bool kSigned, typename Begin, typename Body>
[[gnu::always_inline]] inline void for_each_decoded_pair(const NarrowArgs& a, const Begin& begin,
                                                         const Body& body) {
  GroupScales scales;
  CodeBytes joined;
  const Values values(a.values);
  const bool halves = has_two_scales(a.scale);
  constexpr bool kNibbles = K::kCodes == NarrowCodes::kNibbles;
  for (int64_t g = a.first; g < a.first + a.count; ++g) {
    load_scales<Path>(a, g, scales);
    if constexpr (K::kCodes == NarrowCodes::kE4m3) rescale_e4m3(scales);
    begin(g - a.first);
    const uint8_t* codes = codes_of(a, g, joined);
    for (int64_t col = 0; col < kNarrowGroup; col += 4) {
      const float* const from = scales.s[halves ? col / 16 : 0];
      __m256 s[2] = {_mm256_load_ps(from), _mm256_load_ps(from + kLanes)};
      __m256 m[2] = {_mm256_load_ps(scales.m), _mm256_load_ps(scales.m + kLanes)};
      swap_nibble_row_order<K::kCodes>(s);
      if constexpr (K::kMin) swap_nibble_row_order<K::kCodes>(m);
      unroll<2>([&](auto p) __attribute__((always_inline)) {
        const Pair pair = decode_pair<K>(values, codes, p);
        body(col + 2 * p, scale_and_round<K, kSigned>(pair, s, m));
      });
      constexpr int64_t kBytes = kNibbles ? 2 * kWidth : 4 * kWidth;
      fetch_codes_ahead<K::kCodes>(a, codes, kBytes);
      codes += kBytes;
    }
  }
}

template <typename K>
void unpack_pairs(const NarrowArgs& args) {
  const NarrowArgs a = args;  // a copy that the stores below cannot change
  auto* dst = static_cast<__m256i*>(a.dst);
  for_each_decoded_pair<K, true>(
      a, [](int64_t) {},
      [&](int64_t, const Pair& pair) __attribute__((always_inline)) {
        __m256i both[2];
        unroll<2>([&](auto v) __attribute__((always_inline)) {
          both[v] = _mm256_or_si256(_mm256_srli_epi32(pair.even[v], 16), upper(pair.odd[v]));
        });
        swap_nibble_row_order<K::kCodes>(both);
        unroll<2>([&](auto v)
                      __attribute__((always_inline)) { _mm256_store_si256(dst++, both[v]); });
      });
}

// The chains of a tile, from memory and back, with the rows of registers as
// swap_nibble_row_order<kCodes> has them.
template <NarrowCodes kCodes, int kRows>
[[gnu::always_inline]] inline void load_chains(const TileArgs& t, __m256 (&acc)[kRows][2]) {
  unroll<kRows>([&](auto r) __attribute__((always_inline)) {
    unroll<2>([&](auto v) __attribute__((always_inline)) {
      acc[r][v] = t.start_at_zero ? _mm256_setzero_ps()
                                  : _mm256_loadu_ps(t.acc + r * t.acc_stride + kLanes * v);
    });
    swap_nibble_row_order<kCodes>(acc[r]);
  });
}
template <NarrowCodes kCodes, int kRows>
[[gnu::always_inline]] inline void store_chains(const TileArgs& t, __m256 (&acc)[kRows][2]) {
  unroll<kRows>([&](auto r) __attribute__((always_inline)) {
    swap_nibble_row_order<kCodes>(acc[r]);
    unroll<2>([&](auto v) __attribute__((always_inline)) {
      _mm256_storeu_ps(t.acc + r * t.acc_stride + kLanes * v, acc[r][v]);
    });
  });
}

// Group g of the rows of x, as f32.
template <int kRows>
[[gnu::always_inline]] inline void widen_group(const TileArgs& t, int64_t g,
                                               float (&x)[kRows][kNarrowGroup]) {
  unroll<kRows>([&](auto r) __attribute__((always_inline)) {
    const auto* row = static_cast<const uint16_t*>(t.x) + r * t.x_stride + g * kNarrowGroup;
    unroll<kNarrowGroup / kLanes>([&](auto i) __attribute__((always_inline)) {
      const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(row + kLanes * i));
      _mm256_store_ps(x[r] + kLanes * i,
                      (__m256)_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
    });
  });
}

// The chains of a tile, as a bf16 panel's product has them: element 2p, then 2p + 1.
template <typename K, int kRows>
void accumulate_tile(const NarrowArgs& of, const TileArgs& args) {
  const NarrowArgs a = of;
  const TileArgs t = args;  // copies that the stores below cannot change
  __m256 acc[kRows][2];
  load_chains<K::kCodes>(t, acc);
  alignas(32) float x[kRows][kNarrowGroup];
  for_each_decoded_pair<K, false>(
      a, [&](int64_t g) __attribute__((always_inline)) { widen_group(t, g, x); },
      [&](int64_t col, const Pair& pair) __attribute__((always_inline)) {
        unroll<kRows>([&](auto r) __attribute__((always_inline)) {
          const __m256 first = _mm256_broadcast_ss(x[r] + col);
          const __m256 second = _mm256_broadcast_ss(x[r] + col + 1);
          unroll<2>([&](auto v) __attribute__((always_inline)) {
            acc[r][v] = _mm256_fmadd_ps(first, (__m256)pair.even[v], acc[r][v]);
            acc[r][v] = _mm256_fmadd_ps(second, (__m256)pair.odd[v], acc[r][v]);
          });
        });
      });
  store_chains<K::kCodes>(t, acc);
}

}  // namespace

void narrow_unpack_avx2(const NarrowArgs& args) {
  with_form(args, [&](auto form) { unpack_pairs<decltype(form)>(args); });
}

void narrow_accumulate_avx2(const NarrowArgs& args, const TileArgs& t) {
  with_form_and_rows(args, t.rows, [&](auto form, auto rows) {
    accumulate_tile<decltype(form), decltype(rows){}>(args, t);
  });
}

}  // namespace strata::ops::cpu
#endif
