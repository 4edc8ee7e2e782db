// SPDX-License-Identifier: Apache-2.0
// Gated activation: y = act(gate) * up, where act is
//   kSilu      x sigmoid(x); source: HF modeling_llama.py, LlamaMLP (SwiGLU).
//   kGeluTanh  gelu_pytorch_tanh, x (1 + tanh(v)) / 2 with v = sqrt(2 / pi) (x + 0.044715 x^3);
//              source: HF modeling_gemma.py, GemmaMLP (GeGLU). Computed as x sigmoid(2 v), the same
//              function without the cancellation of its negative tail.
//   kIdentity  x; source: HF modeling_lfm2.py, Lfm2ShortConv (gates without an activation).
//   kSigmoid   sigmoid(x); source: HF modeling_qwen3_5.py, Qwen3_5Attention (output gate; no SiLU).
// T tokens, F feed-forward width. Arithmetic in fp32, results rounded once. With u = 2^-24 and, for
// kGeluTanh, e = 4 |2 v| u (the others: e = 0), act is within 7 u + e and act' within 18 u + e of
// the sum of its terms' magnitudes while these are normal numbers; beyond |x| = 16 the sigmoid of
// kGeluTanh is exactly 0 or 1. Engine thread only; outputs may alias inputs.
#pragma once
#include "backend/backend.h"
#include "tensor/view.h"

namespace strata::ops {

enum class Activation { kSilu, kGeluTanh, kSigmoid, kIdentity };

// gate, up, y: [T, F], one type, f32 or bf16. Rows may have gaps, and shapes any rank: where a
// projection has [q | gate] for each head, the gate is the view [T, N, H] with rows 2 H apart.
void act_and_mul(Backend& backend, Activation activation, TensorView gate, TensorView up,
                 TensorView y);

// Writes d_gate and d_up [T, F] (the type of gate) from d_y [T, F] f32 or bf16.
void act_and_mul_backward(Backend& backend, Activation activation, TensorView gate, TensorView up,
                          TensorView d_y, TensorView d_gate, TensorView d_up);

// The same with a factor for each row, before the rounding: y = scale * act(gate) * up. An expert
// weighs its hidden values with the router's weight, since what follows is linear. scales: [T] f32.
void scaled_act_and_mul(Backend& backend, Activation activation, TensorView gate, TensorView up,
                        TensorView scales, TensorView y);

// Also writes d_scales [T] f32, the sum of d_y act(gate) up over a row: sixteen interleaved
// partial sums, then their tree. d_gate and d_up may lie over the inputs.
void scaled_act_and_mul_backward(Backend& backend, Activation activation, TensorView gate,
                                 TensorView up, TensorView scales, TensorView d_y,
                                 TensorView d_gate, TensorView d_up, TensorView d_scales);

}  // namespace strata::ops
