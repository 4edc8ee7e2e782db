// SPDX-License-Identifier: Apache-2.0
// The token embedding with adapters: x = E[id] + round(scale * A[:, id]) B^T for rows of an adapter
// that has the module. Source: PEFT tuners/lora/layer.py, Embedding. It acts on the input side
// only, also when the head is tied to E. Some models multiply all of it by a number (HF
// modeling_gemma3.py, Gemma3TextScaledWordEmbedding).
#pragma once
#include "model/pass/pass.h"

namespace strata::model {

// Writes x [T, D] of the compute type.
void embedding_forward(Pass& pass, TensorView x);

// d [T, D] f32: the gradient of x. Accumulates what the pass asks for.
void embedding_backward(Pass& pass, TensorView d);

}  // namespace strata::model
