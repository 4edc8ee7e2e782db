// The gated MLP block: out = h + down(silu(gate(n)) * up(n)), n = norm(h). See
// model/decoder_layer.h.
#pragma once
#include "model/decoder_layer.h"

namespace strata::model {

// Takes gate and up from the scratch; and their size.
void take_mlp_activations(Pass& pass, LayerActivations& acts);
int64_t mlp_activation_bytes(const ModelConfig& config, DType dtype, int64_t num_tokens);

// Reads acts.h; fills gate, up and their lora_h; writes out [T, D] unless it is empty (recompute
// needs only the rest).
void mlp_forward(Pass& pass, int64_t layer, const LayerActivations& acts, TensorView out);

// d [T, D] f32: the gradient of out on entry, of h on return.
void mlp_backward(Pass& pass, int64_t layer, const LayerActivations& acts, TensorView d);

}  // namespace strata::model
