// SPDX-License-Identifier: Apache-2.0
// The inputs that each layer has besides its state: of layer l, (norm(round(D^-1/2 W x0))[l] +
// sqrt(P) E_l[id]) / sqrt(2), where x0 is the embedding's output and E_l a layer's own embedding of
// the token. model/blocks/per_layer_input.h reads them. Source: HF modeling_gemma4.py,
// Gemma4TextModel.project_per_layer_inputs. T tokens, D model width, L layers, P width of an input.
// Engine thread only.
#pragma once
#include "model/pass/pass.h"

namespace strata::model {

// Makes those of the pass's rows from x0 [T, D], in its shared values (model/pass/shared_values.h).
// Nothing where the model has none.
void make_per_layer_inputs(Pass& pass, TensorView x0);

// From their gradient, where the pass has it: adds to d [T, D] f32, the gradient of x0, and
// accumulates what the pass asks for.
void per_layer_inputs_backward(Pass& pass, TensorView d);

}  // namespace strata::model
