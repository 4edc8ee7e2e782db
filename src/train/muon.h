// SPDX-License-Identifier: Apache-2.0
// Muon: a step of one matrix by its orthogonalised momentum (Jordan et al., 2024), in DeepSeek-V4's
// form: Nesterov momentum, ten steps of Newton and Schulz of which the last two settle on singular
// values of one, an update of RMS 0.18, decoupled weight decay:
//   g' = g * grad_scale;  m = momentum m + g';  u = g' + momentum m
//   p = p (1 - lr weight_decay) - lr 0.18 sqrt(max(rows, cols)) orthogonalised(u)
// All fp32; factors are computed in double and rounded once. Products are those of ops/gemm.h.
// Engine thread only.
#pragma once
#include "backend/backend.h"

namespace strata::train {

struct MuonArgs {
  double lr = 1e-4;
  double momentum = 0.95;
  double weight_decay = 0.0;
  double grad_scale = 1.0;  // the clip factor
};

// p and m are updated in place, g is overwritten; [rows, cols] f32, dense. A gradient and momentum
// of zero, or so small that |u| has no inverse in f32, move p by its decay alone.
void muon_step(Backend& backend, const MuonArgs& args, TensorView g, TensorView p, TensorView m);

// u [rows, cols] f32, dense, becomes nearly U V^T of its decomposition U S V^T:
//   x = u / |u|;  a x + (b A + c A^2) x with A = x x^T (the smaller of x x^T and x^T x), eight
//   times with (a, b, c) = (3.4445, -4.7750, 2.0315), then twice with (2, -1.5, 0.5).
void orthogonalise(Backend& backend, TensorView u);

}  // namespace strata::train
