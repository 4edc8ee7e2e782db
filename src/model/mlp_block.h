// The gated MLP block: out = h + down(silu(gate(n)) * up(n)), n = norm(h). See
// model/decoder_layer.h.
#pragma once
#include "model/decoder_layer.h"

namespace strata::model {

// Reads acts.h; fills gate, up and their lora_h; writes out [T, D] unless it is empty (recompute
// needs only the rest).
void mlp_forward(Pass& pass, int64_t layer, const LayerActivations& acts, TensorView out);

// d [T, D] f32: the gradient of out on entry, of h on return.
void mlp_backward(Pass& pass, int64_t layer, const LayerActivations& acts, TensorView d);

}  // namespace strata::model
