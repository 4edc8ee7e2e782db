// SPDX-License-Identifier: Apache-2.0
#include "ops/cpu/attention_amx_avx512.h"

namespace strata::ops::cpu {
namespace {

struct Kernel : AmxPairs {
  static void add_groups(const ProductTile& t, bool from_zero) {
    add_groups_by_fma<Kernel>(t, from_zero);
  }
  static void dot_lanes(const uint32_t* a, const uint32_t* b, int64_t steps, float* out) {
    dot_lanes_by_fma<Kernel>(a, b, steps, out);
  }
};

}  // namespace

const AttentionKernels kAttentionAmxAvx512 = attention_kernels<Kernel>();

}  // namespace strata::ops::cpu
