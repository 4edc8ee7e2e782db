// SPDX-License-Identifier: Apache-2.0
// RMSNorm of each head, times the SiLU of a gate: y = x inv_rms weight silu(z), inv_rms = 1 /
// sqrt(mean(x^2) + eps) over the head's D elements. Source of the formula: HF modeling_qwen3_5.py,
// Qwen3_5RMSNormGated (its weight has no offset).  T tokens, N heads, D head width.
// Arithmetic in fp32, one rounding; sums over D as ops/rms_norm.h has them. Engine thread only.
// Allocates nothing but scratch. Tensors of heads are [T, N, D] or [T, N D], x alone is always [T,
// N, D]; the view's rows may have gaps.
#pragma once
#include "backend/backend.h"
#include "tensor/view.h"

namespace strata::ops {

struct GatedNormArgs {
  TensorView x;       // [T, N, D] f32 or bf16
  TensorView z;       // T, N, D of x's type
  TensorView weight;  // [D] f32
  float eps = 1e-6f;
};

// Writes y, T, N, D of x's type; y may lie over x or z.
void gated_norm(Backend& backend, const GatedNormArgs& args, TensorView y);

// d_y: T, N, D, f32 or bf16. Writes d_x and d_z, T, N, D of x's type, which may lie over x, z or a
// d_y of that type. Adds to d_weight [D] f32 unless it is empty: one chain over ascending (token,
// head) from the stored value. inv_rms is recomputed.
void gated_norm_backward(Backend& backend, const GatedNormArgs& args, TensorView d_y,
                         TensorView d_x, TensorView d_z, TensorView d_weight);

}  // namespace strata::ops
