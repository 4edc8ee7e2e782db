// The latent attention block (DeepSeek-V3): h = x + o_proj(attention), in the absorbed form alone:
// scores and context are taken in latent space, against one row a token, [latent | rotated key],
// which all heads share, of which the latent is also the value, and which is all that a KV cache
// holds. The same form in training, prefill and decode, so that they agree bit for bit. Source: HF
// modeling_deepseek_v3.py, DeepseekV3Attention (which expands keys and values instead). See
// model/mla_heads.h and model/decoder_layer.h.
#pragma once
#include "model/decoder_layer.h"

namespace strata::model {

// Takes q_a, q_raw, kv_a, latent_context, context and lse from the scratch; and their size.
void take_mla_activations(Pass& pass, LayerActivations& acts);
int64_t mla_activation_bytes(const ModelConfig& config, DType dtype, int64_t num_tokens);
// The most that forward or backward take beyond the activations.
int64_t mla_temporary_bytes(const ModelConfig& config, DType dtype, int64_t num_tokens,
                            int64_t rank, bool backward);

// Reads acts.x; fills what take_mla_activations took, h and their lora_h.
void mla_forward(Pass& pass, int64_t layer, const LayerActivations& acts);

// d [T, D] f32: the gradient of h on entry, of x on return. Not with a KV cache.
void mla_backward(Pass& pass, int64_t layer, const LayerActivations& acts, TensorView d);

}  // namespace strata::model
