// SPDX-License-Identifier: Apache-2.0
#include "ops/cpu/delta_net_kernels_impl.h"
#include "ops/cpu/simd_scalar.h"

namespace strata::ops::cpu {
namespace {

struct DeltaPathScalar {
  using V = Scalar;
  static constexpr int kTileVectors = 1;
  static void transpose(V::F (&t)[kLanes]) {
    for (int i = 0; i < kLanes; ++i) {
      for (int j = 0; j < i; ++j) {
        const float above = t[j].lane[i];
        t[j].lane[i] = t[i].lane[j];
        t[i].lane[j] = above;
      }
    }
  }
};

}  // namespace

const DeltaKernels kDeltaReference = delta_kernels<DeltaPathScalar>();

}  // namespace strata::ops::cpu
