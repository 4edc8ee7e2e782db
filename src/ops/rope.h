// SPDX-License-Identifier: Apache-2.0
// Per-head RMSNorm (Qwen3; optional) followed by rotary position embedding of the pairs (h, h +
// R/2) of the first R columns, or of (2h, 2h + 1) where `interleaved`; the result has its pairs at
// (h, h + R/2) either way. Columns from R on are normed and not turned. The norm is over all of H
// and multiplies by weight_offset + weight, as ops/rms_norm.h does; its dot products take the pairs
// first, sixteen lanes of each half in turn, then the other columns.
// Sources: HF modeling_qwen3.py, Qwen3Attention; modeling_llama.py, apply_rotary_pos_emb;
// modeling_deepseek_v3.py, apply_rotary_pos_emb_interleave; modeling_qwen3_next.py (partial
// rotary). T tokens, N heads, H head width, R rotary width (even). Arithmetic in fp32 from the raw
// projection to the rounded result: the norm's result is not rounded in between. Engine thread
// only. y may alias x.
#pragma once
#include <span>

#include "backend/backend.h"
#include "tensor/view.h"

namespace strata::ops {

constexpr int64_t kMaxInterleavedDim = 1024;

struct HeadNormRopeArgs {
  TensorView x;       // [T, N, H] f32 or bf16, the raw projection
  TensorView weight;  // [H] f32, or empty: no norm
  float eps = 1e-6f;
  float weight_offset = 0.0f;
  std::span<const int32_t> positions;  // [T]
  TensorView cos;                      // [P, R / 2] f32, P > every position
  TensorView sin;                      // [P, R / 2] f32
  bool interleaved = false;            // without a norm, H <= kMaxInterleavedDim
  int64_t rotary_dim = 0;              // R; 0: H

  [[nodiscard]] int64_t rotary_width() const { return rotary_dim == 0 ? x.cols() : rotary_dim; }
};

// Writes y [T, N, H] of x's type.
void head_norm_rope(Backend& backend, const HeadNormRopeArgs& args, TensorView y);

// d_y [T, N, H] f32 or bf16. Writes d_x [T, N, H] f32 or bf16 (may alias d_y when types agree).
// Adds to d_weight [H] f32 unless empty: one chain over ascending (token, head) from the stored
// value.
void head_norm_rope_backward(Backend& backend, const HeadNormRopeArgs& args, TensorView d_y,
                             TensorView d_x, TensorView d_weight);

}  // namespace strata::ops
