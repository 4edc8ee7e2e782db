// SPDX-License-Identifier: Apache-2.0
#include "ops/cpu/attention_kernels_impl.h"
#include "ops/cpu/simd_avx2.h"

namespace strata::ops::cpu {
namespace {

// t[i] lane j becomes t[j] lane i.
void transpose_8x8(__m256 (&t)[8]) {
  __m256 a[8];
#pragma GCC unroll 8
  for (int i = 0; i < 8; i += 2) {
    a[i] = _mm256_unpacklo_ps(t[i], t[i + 1]);
    a[i + 1] = _mm256_unpackhi_ps(t[i], t[i + 1]);
  }
  __m256 b[8];
#pragma GCC unroll 8
  for (int i = 0; i < 8; i += 4) {
    b[i] = _mm256_shuffle_ps(a[i], a[i + 2], 0x44);
    b[i + 1] = _mm256_shuffle_ps(a[i], a[i + 2], 0xee);
    b[i + 2] = _mm256_shuffle_ps(a[i + 1], a[i + 3], 0x44);
    b[i + 3] = _mm256_shuffle_ps(a[i + 1], a[i + 3], 0xee);
  }
#pragma GCC unroll 8
  for (int c = 0; c < 4; ++c) {
    t[c] = _mm256_permute2f128_ps(b[c], b[4 + c], 0x20);
    t[4 + c] = _mm256_permute2f128_ps(b[c], b[4 + c], 0x31);
  }
}

template <typename X, bool kRound>
struct Kernel {
  using V = Avx2;
  using F = V::F;
  using Element = X;
  static constexpr int64_t kPack = 1;
  static constexpr int kTileVectors = 1;

  static F dot(F acc, F panel, F word) { return V::fma(word, panel, acc); }
  static F load_words(const X* x, int64_t left) {
    return left >= kLanes ? V::load(x, Whole{}) : V::load(x, Part{static_cast<int>(left)});
  }
  static void transpose(F (&t)[kLanes]) {
    for (int half = 0; half < kLanes; half += 8) {
      __m256 low[8];
      __m256 high[8];
      for (int i = 0; i < 8; ++i) low[i] = t[half + i].lo;
      for (int i = 0; i < 8; ++i) high[i] = t[half + i].hi;
      transpose_8x8(low);
      transpose_8x8(high);
      for (int i = 0; i < 8; ++i) t[half + i] = {low[i], high[i]};
    }
    // The two halves hold [columns 0-7 | columns 8-15] of rows 0-7 and of rows 8-15.
    for (int i = 0; i < 8; ++i) {
      const F top = t[i];
      const F bottom = t[8 + i];
      t[i] = {top.lo, bottom.lo};
      t[8 + i] = {top.hi, bottom.hi};
    }
  }
  // What a probability is in a product.
  static F rounded(F x) {
    if constexpr (!kRound) return x;
    Bf16 halves[kLanes];
    V::store(halves, x, Whole{});
    return V::load(halves, Whole{});
  }
  static void store_rounded_row(uint32_t* dst, const F (&x)[kBlockVectors]) {
#pragma GCC unroll 4
    for (int j = 0; j < kBlockVectors; ++j) {
      V::store(reinterpret_cast<float*>(dst) + kLanes * j, rounded(x[j]), Whole{});
    }
  }
  static void store_rounded_step(uint32_t* dst, const F (&x)[1][kBlockVectors]) {
    store_rounded_row(dst, x[0]);
  }
};

}  // namespace

const AttentionKernels kAttentionAvx2F32 = attention_kernels<Kernel<float, false>>();
const AttentionKernels kAttentionAvx2Widened = attention_kernels<Kernel<Bf16, true>>();

}  // namespace strata::ops::cpu
