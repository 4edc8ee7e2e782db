// The attention block: h = x + o_proj(attention(q, k, v)) with q, k, v projected from norm(x), q
// and k normed per head (Qwen3) and rotated. See model/decoder_layer.h. With a KV cache the new
// keys and values are written to its pages first and attention reads the pages; without one it
// reads them where they were computed: the same bits either way.
#pragma once
#include "model/decoder_layer.h"

namespace strata::model {

// Takes q_raw, k_raw, v, context and lse from the scratch; and their size.
void take_attention_activations(Pass& pass, LayerActivations& acts);
int64_t attention_activation_bytes(const ModelConfig& config, DType dtype, int64_t num_tokens);

// Reads acts.x; fills q_raw, k_raw, v, context, lse, h and their lora_h.
void attention_forward(Pass& pass, int64_t layer, const LayerActivations& acts);

// d [T, D] f32: the gradient of h on entry, of x on return. Not with a KV cache.
void attention_backward(Pass& pass, int64_t layer, const LayerActivations& acts, TensorView d);

}  // namespace strata::model
