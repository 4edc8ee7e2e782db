// SwiGLU: y = silu(gate) * up, silu(x) = x / (1 + exp(-x)); source: HF modeling_llama.py, LlamaMLP.
// T tokens, F feed-forward width. Arithmetic in fp32, results rounded once. Engine thread only;
// outputs may alias inputs.
#pragma once
#include "backend/backend.h"
#include "tensor/view.h"

namespace strata::ops {

// gate, up, y: [T, F], one type, f32 or bf16.
void swiglu(Backend& backend, TensorView gate, TensorView up, TensorView y);

// Writes d_gate and d_up [T, F] (the type of gate) from d_y [T, F] f32 or bf16.
void swiglu_backward(Backend& backend, TensorView gate, TensorView up, TensorView d_y,
                     TensorView d_gate, TensorView d_up);

// The same with a factor for each row, before the rounding: y = scale * silu(gate) * up. An expert
// weighs its hidden values with the router's weight, since what follows is linear. scales: [T] f32.
void swiglu_rows(Backend& backend, TensorView gate, TensorView up, TensorView scales, TensorView y);

// Also writes d_scales [T] f32, the sum of d_y silu(gate) up over a row: sixteen interleaved
// partial sums, then their tree. d_gate and d_up may lie over the inputs.
void swiglu_rows_backward(Backend& backend, TensorView gate, TensorView up, TensorView scales,
                          TensorView d_y, TensorView d_gate, TensorView d_up, TensorView d_scales);

}  // namespace strata::ops
