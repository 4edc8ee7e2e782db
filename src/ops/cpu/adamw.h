// SPDX-License-Identifier: Apache-2.0
// Kernel of ops/adamw.h for one path: n neighbouring elements.
#pragma once
#include <span>

#include "ops/cpu/simd.h"

namespace strata {
class CpuBackend;
struct TensorView;
namespace ops {
struct AdamWArgs;
struct AdamWItem;
}  // namespace ops
}  // namespace strata

namespace strata::ops::cpu {

// The CPU behind ops/adamw.h: arguments are checked.
void adamw(CpuBackend& backend, const AdamWArgs& args, TensorView g, TensorView p, TensorView m,
           TensorView v);
void adamw_fused(CpuBackend& backend, const AdamWArgs& args, std::span<const AdamWItem> items);

// Factors of one step, rounded to fp32 once.
struct AdamWKernel {
  float grad_scale;
  float beta1;
  float one_minus_beta1;
  float beta2;
  float one_minus_beta2;
  float decay;            // 1 - lr * weight_decay
  float step_size;        // lr / (1 - beta1^step)
  float root_correction;  // 1 / sqrt(1 - beta2^step)
  float eps;
};

template <typename V>
void adamw_piece(const AdamWKernel& k, const float* g, float* p, float* m, float* v, int64_t n);

}  // namespace strata::ops::cpu
