// SPDX-License-Identifier: Apache-2.0
// The two gates of a gated delta net, for each token and value head:
//   log_decay = -exp(a_log) softplus(a + dt_bias), beta = sigmoid(b).
// Source of the formulas: HF modeling_qwen3_5.py, Qwen3_5GatedDeltaNet.  T tokens, H value heads.
// softplus(s) = max(s, 0) + log1p(exp(-|s|)), whose relative error stays small on both sides
// (exp(s) far below zero); torch's softplus is s itself from 20 on, where this sum rounds to s too.
// Arithmetic in fp32. With s = a + dt_bias rounded once and u = 2^-24, log_decay is within 12 u of
// its size, beta within 6 u, the gradients before their rounding within 12 u (normal numbers).
// Engine thread only. Allocates nothing.
#pragma once
#include "backend/backend.h"
#include "tensor/view.h"

namespace strata::ops {

struct DeltaGatesArgs {
  TensorView a;        // [T, H] f32 or bf16
  TensorView b;        // [T, H] of a's type
  TensorView a_log;    // [H] f32
  TensorView dt_bias;  // [H] f32
};

// Writes log_decay and beta [T, H] f32.
void delta_gates(Backend& backend, const DeltaGatesArgs& args, TensorView log_decay,
                 TensorView beta);

// d_log_decay and d_beta [T, H] f32. Writes d_a and d_b [T, H] of a's type; they may lie over a and
// b. Adds to d_a_log and d_dt_bias [H] f32, each unless it is empty: one chain over ascending
// tokens from the stored value, of terms that are not rounded to a's type.
void delta_gates_backward(Backend& backend, const DeltaGatesArgs& args, TensorView d_log_decay,
                          TensorView d_beta, TensorView d_a, TensorView d_b, TensorView d_a_log,
                          TensorView d_dt_bias);

}  // namespace strata::ops
