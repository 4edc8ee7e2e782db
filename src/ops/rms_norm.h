// SPDX-License-Identifier: Apache-2.0
// RMSNorm over the last dimension: y = x * inv_rms * (weight_offset + weight), inv_rms = 1 /
// sqrt(mean(x^2) + eps). Sources of the formula: HF modeling_qwen3.py, Qwen3RMSNorm;
// modeling_gemma.py, GemmaRMSNorm (1 + weight).  T tokens, D model width.
// Arithmetic in fp32; each row is reduced in a fixed order of 16 interleaved partial sums (lane j
// sums elements j, j+16, ...) and one fixed tree, on every path. Engine thread only. Allocates
// nothing but scratch; y may alias x when their types agree. The multiplier is one fp32 addition,
// left out where the offset is 0. Without a weight (Gemma 4's values) nothing is multiplied.
#pragma once
#include "backend/backend.h"
#include "tensor/view.h"

namespace strata::ops {

struct RmsNormArgs {
  TensorView x;       // [T, D] f32 or bf16
  TensorView weight;  // [D] f32, or empty: a multiplier of 1
  float eps = 1e-6f;
  float weight_offset = 0.0f;  // Gemma, Qwen3.5: 1; 0 without a weight
};

// Writes y [T, D] f32 or bf16 and, unless empty, inv_rms [T] f32.
void rms_norm(Backend& backend, const RmsNormArgs& args, TensorView y, TensorView inv_rms);

// Adds to d_x [T, D] f32 (the residual gradient). d_y [T, D] f32. Adds to d_weight [D] f32 unless
// it is empty (one chain over ascending tokens from the stored value). inv_rms is recomputed when
// the view is empty.
void rms_norm_backward(Backend& backend, const RmsNormArgs& args, TensorView inv_rms,
                       TensorView d_y, TensorView d_x, TensorView d_weight);

}  // namespace strata::ops
