// SPDX-License-Identifier: Apache-2.0
#include "ops/cpu/delta_net_kernels_impl.h"
#include "ops/cpu/panels_avx512.h"
#include "ops/cpu/simd_avx512.h"

namespace strata::ops::cpu {
namespace {

struct DeltaPath512 {
  using V = Avx512;
  static constexpr int kTileVectors = 4;
  static void transpose(V::F (&t)[kLanes]) {
    __m512i rows[kLanes];
    for (int i = 0; i < kLanes; ++i) rows[i] = _mm512_castps_si512(t[i].v);
    transpose_16x16(rows);
    for (int i = 0; i < kLanes; ++i) t[i].v = _mm512_castsi512_ps(rows[i]);
  }
};

}  // namespace

const DeltaKernels kDeltaAvx512 = delta_kernels<DeltaPath512>();

}  // namespace strata::ops::cpu
