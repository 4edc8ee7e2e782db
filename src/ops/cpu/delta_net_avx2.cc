// SPDX-License-Identifier: Apache-2.0
#include "ops/cpu/delta_net_kernels_impl.h"
#include "ops/cpu/panels_avx2.h"
#include "ops/cpu/simd_avx2.h"

namespace strata::ops::cpu {
namespace {

struct DeltaPath2 {
  using V = Avx2;
  static constexpr int kTileVectors = 1;
  // Quadrants, the upper right and the lower left exchanged.
  static void transpose(V::F (&t)[kLanes]) {
    for (int half = 0; half < kLanes; half += 8) {
      __m256i low[8];
      __m256i high[8];
      for (int i = 0; i < 8; ++i) low[i] = _mm256_castps_si256(t[half + i].lo);
      for (int i = 0; i < 8; ++i) high[i] = _mm256_castps_si256(t[half + i].hi);
      transpose_8x8(low);
      transpose_8x8(high);
      for (int i = 0; i < 8; ++i) {
        t[half + i] = {_mm256_castsi256_ps(low[i]), _mm256_castsi256_ps(high[i])};
      }
    }
    for (int i = 0; i < 8; ++i) {
      const V::F top = t[i];
      const V::F bottom = t[8 + i];
      t[i] = {top.lo, bottom.lo};
      t[8 + i] = {top.hi, bottom.hi};
    }
  }
};

}  // namespace

const DeltaKernels kDeltaAvx2 = delta_kernels<DeltaPath2>();

}  // namespace strata::ops::cpu
