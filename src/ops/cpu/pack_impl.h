// SPDX-License-Identifier: Apache-2.0
// Packing as AVX2 and AVX-512 share it, as templates over a path: its Words (cpu/panels_<path>.h),
// load<from, to_bf16> of a register's worth of steps of a row, and what it does ahead of a block
// and where a block is not whole. A file that includes this has its own copy.
#pragma once
#include <immintrin.h>

#include "ops/cpu/pack_kernels.h"

namespace strata::ops::cpu {
namespace {

template <typename P, PackType kFrom, bool kToBf16>
void pack_block(const PackArgs& a, int64_t step, int64_t lane) {
  using W = typename P::W;
  constexpr int64_t kElements = kToBf16 ? 2 : 1;  // of a step
  typename W::I block[W::kCount];
  for (int i = 0; i < W::kCount; ++i) {
    const int64_t index = (lane + i) * a.stride + step * kElements;
    P::fetch(static_cast<const char*>(a.rows) + index * (kFrom == PackType::kF32 ? 4 : 2));
    block[i] = P::template load<kFrom, kToBf16>(a.rows, index);
  }
  W::transpose(block);
  auto* dst = static_cast<uint32_t*>(a.dst) + step * a.width + lane;
  for (int i = 0; i < W::kCount; ++i) {
    if (a.stream) {
      W::stream(dst + i * a.width, block[i]);
    } else {
      W::store(dst + i * a.width, block[i]);
    }
  }
}

template <typename P, PackType kFrom, bool kToBf16>
void pack(const PackArgs& a) {
  constexpr int64_t kCount = P::W::kCount;
  for (int64_t step = 0; step < a.steps; step += kCount) {
    for (int64_t lane = 0; lane < a.lanes; lane += kCount) {
      if (P::kPacksPartialBlocks && (step + kCount > a.steps || lane + kCount > a.lanes)) {
        P::template pack_partial_block<kFrom, kToBf16>(a, step, lane);
      } else {
        pack_block<P, kFrom, kToBf16>(a, step, lane);
      }
    }
  }
  if (a.stream) _mm_sfence();
}

template <typename P>
void pack(const PackArgs& a) {
  switch (a.from) {
    case PackType::kF32:
      return a.to_bf16 ? pack<P, PackType::kF32, true>(a) : pack<P, PackType::kF32, false>(a);
    case PackType::kBF16:
      return a.to_bf16 ? pack<P, PackType::kBF16, true>(a) : pack<P, PackType::kBF16, false>(a);
    case PackType::kF16:
      return a.to_bf16 ? pack<P, PackType::kF16, true>(a) : pack<P, PackType::kF16, false>(a);
  }
}

}  // namespace
}  // namespace strata::ops::cpu
