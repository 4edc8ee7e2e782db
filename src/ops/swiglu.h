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

}  // namespace strata::ops
