// SPDX-License-Identifier: Apache-2.0
#include "ops/cpu/attention_avx512.h"

namespace strata::ops::cpu {
namespace {

template <typename X, bool kRound>
struct Kernel : OneChain {
  using V = Avx512;
  using F = V::F;
  using Element = X;
  static constexpr int64_t kPack = 1;
  static constexpr int kTileVectors = 4;

  static F dot(F acc, F panel, F word) { return V::fma(word, panel, acc); }
  static F load_words(const X* x, int64_t left) {
    return left >= kLanes ? V::load(x, Whole{}) : V::load(x, Part{static_cast<int>(left)});
  }
  static void transpose(F (&t)[kLanes]) { transpose_16x16(t); }
  // What a probability is in a product.
  static F rounded(F x) { return kRound ? V::widen(V::to_bf16_bits(x)) : x; }
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

const AttentionKernels kAttentionAvx512F32 = attention_kernels<Kernel<float, false>>();
const AttentionKernels kAttentionAvx512Widened = attention_kernels<Kernel<Bf16, true>>();

}  // namespace strata::ops::cpu
