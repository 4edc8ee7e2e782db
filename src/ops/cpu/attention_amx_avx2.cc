// SPDX-License-Identifier: Apache-2.0
#include "ops/cpu/attention_avx2.h"
#include "ops/cpu/attention_groups_impl.h"

namespace strata::ops::cpu {
namespace {

struct Kernel : InGroups {
  using V = Avx2;
  using F = V::F;
  using Element = Bf16;
  static constexpr int64_t kPack = 2;
  static constexpr int64_t kGroupRows = 2;
  static constexpr int num_strip_vectors(int) { return 1; }

  static void add_groups(const ProductTile& t, bool from_zero) {
    add_groups_by_fma<Kernel>(t, from_zero);
  }
  static void dot_lanes(const uint32_t* a, const uint32_t* b, int64_t steps, float* out) {
    dot_lanes_by_fma<Kernel>(a, b, steps, out);
  }
  static __m256 shifted_left(__m256 words) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(words), 16));
  }
  static F low_halves(F words) { return {shifted_left(words.lo), shifted_left(words.hi)}; }
  static F high_halves(F words) {
    const __m256 mask = _mm256_castsi256_ps(_mm256_set1_epi32(static_cast<int>(0xffff0000)));
    return {_mm256_and_ps(words.lo, mask), _mm256_and_ps(words.hi, mask)};
  }
  static F load_words(const Bf16* x, int64_t left) {
    if (left >= 2 * kLanes) return V::load(reinterpret_cast<const float*>(x), Whole{});
    alignas(32) uint16_t halves[2 * kLanes] = {};
    __builtin_memcpy(halves, x, static_cast<unsigned>(left) * sizeof(uint16_t));
    return V::load(reinterpret_cast<const float*>(halves), Whole{});
  }
  static void transpose(F (&t)[kLanes]) { transpose_16x16(t); }
  static F interleave_eight_each(__m256 first, __m256 second) {
    const __m256i a = _mm256_castps_si256(first);
    const __m256i b = _mm256_castps_si256(second);
    const __m256i outer = _mm256_unpacklo_epi16(a, b);  // words 0-3 and 8-11
    const __m256i inner = _mm256_unpackhi_epi16(a, b);  // words 4-7 and 12-15
    return {_mm256_castsi256_ps(_mm256_permute2x128_si256(outer, inner, 0x20)),
            _mm256_castsi256_ps(_mm256_permute2x128_si256(outer, inner, 0x31))};
  }
  // Words (first[i], second[i]), of 32 elements each: the first sixteen, and the others.
  static void interleave(F first, F second, F& low, F& high) {
    low = interleave_eight_each(first.lo, second.lo);
    high = interleave_eight_each(first.hi, second.hi);
  }
  static void store_rounded_row(uint32_t* dst, const F (&x)[kBlockVectors]) {
#pragma GCC unroll 4
    for (int j = 0; j < kBlockVectors; ++j) {
      V::store(reinterpret_cast<Bf16*>(dst) + kLanes * j, x[j], Whole{});
    }
  }
  static __m256 rounded_words(__m256 first, __m256 second) {
    const __m256i high = _mm256_slli_epi32(V::to_bf16_bits(second), 16);
    return _mm256_castsi256_ps(_mm256_or_si256(V::to_bf16_bits(first), high));
  }
  static void store_rounded_step(uint32_t* dst, const F (&x)[2][kBlockVectors]) {
#pragma GCC unroll 4
    for (int j = 0; j < kBlockVectors; ++j) {
      const F words = {rounded_words(x[0][j].lo, x[1][j].lo),
                       rounded_words(x[0][j].hi, x[1][j].hi)};
      V::store(reinterpret_cast<float*>(dst) + kLanes * j, words, Whole{});
    }
  }
};

}  // namespace

const AttentionKernels kAttentionAmxAvx2 = attention_kernels<Kernel>();

}  // namespace strata::ops::cpu
