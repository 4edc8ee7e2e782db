// SPDX-License-Identifier: Apache-2.0
// RMSNorm of each head (optional), then rotation of the pairs (h, h + 1) of its last R columns, in
// place: DeepSeek-V4 turns queries, keys and what the indexer compares so, and turns contexts back,
// since its keys are values too. The norm is over all of H, its weight optional. Unlike
// ops/rope.h's, the result keeps its pairs side by side. Source: HF modeling_deepseek_v4.py,
// apply_rotary_pos_emb, DeepseekV4RMSNorm, DeepseekV4UnweightedRMSNorm.  T tokens, N heads, H head
// width (at most kMaxTailWidth), R rotated width (even, like H - R). Arithmetic in fp32 from x to
// the rounded result; a norm's sums as ops/rms_norm.h has them. Engine thread only. y may alias x
// when types agree.
#pragma once
#include <span>

#include "backend/backend.h"
#include "tensor/view.h"

namespace strata::ops {

constexpr int64_t kMaxTailWidth = 4096;

struct TailRopeArgs {
  TensorView x;  // [T, N, H] f32 or bf16, dense
  bool norm = false;
  TensorView weight = {};  // [H] f32, or empty: of the norm
  float eps = 1e-6f;
  std::span<const int32_t> positions;  // [T]
  TensorView cos;                      // [P, R / 2] f32, P > every position
  TensorView sin;                      // [P, R / 2] f32
  bool inverse = false;                // by minus the position's angle
};

// Writes y [T, N, H] f32 or bf16.
void tail_rope(Backend& backend, const TailRopeArgs& args, TensorView y);

// d_y [T, N, H] f32 or bf16. Writes d_x [T, N, H] f32 or bf16 (may alias d_y when types agree and
// there is no d_weight). Adds to d_weight [H] f32 unless empty: one chain over ascending (token,
// head) from the stored value.
void tail_rope_backward(Backend& backend, const TailRopeArgs& args, TensorView d_y, TensorView d_x,
                        TensorView d_weight);

}  // namespace strata::ops
