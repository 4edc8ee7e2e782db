// The sparse MLP block: out = h + sum over the chosen experts of weight * expert(n) + shared(n), n
// = norm(h), expert(n) = down(silu(gate(n)) * up(n)). Sources: HF modeling_qwen3_moe.py,
// Qwen3MoeSparseMoeBlock; modeling_deepseek_v3.py, DeepseekV3MoE. No capacity: every token reaches
// its experts, and its result depends on no other token. The router's weight goes into the expert's
// hidden values before the down projection, which is linear; a token's experts are summed in fp32
// in the order of its choice. See model/decoder_layer.h.
#pragma once
#include "model/decoder_layer.h"

namespace strata::model {

// Takes the activations but the routing from the scratch; and their size, routing included.
void take_moe_activations(Pass& pass, LayerActivations& acts);
int64_t moe_activation_bytes(const ModelConfig& config, DType dtype, int64_t num_tokens);
// The widest moment inside a forward or a backward beyond what is kept; expert_rank of the
// adapters' routed experts.
int64_t moe_temporary_bytes(const ModelConfig& config, DType dtype, int64_t num_tokens,
                            int64_t expert_rank, bool backward);

// Reads acts.h; fills the routing unless it is known, and the rest; writes out [T, D] unless it is
// empty (recompute needs only the rest).
void moe_forward(Pass& pass, int64_t layer, const LayerActivations& acts, TensorView out);

// d [T, D] f32: the gradient of out on entry, of h on return.
void moe_backward(Pass& pass, int64_t layer, const LayerActivations& acts, TensorView d);

}  // namespace strata::model
