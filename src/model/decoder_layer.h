// One pre-norm decoder layer: h = x + Attention(norm(x)); out = h + MLP(norm(h)), each of the two a
// block chosen by the layer's kind (model/layer_table.h). Sources: HF
// modeling_llama.py, LlamaDecoderLayer; modeling_qwen3.py, Qwen3DecoderLayer. T tokens, D model
// width, N query heads, M key/value heads, H head width, F feed-forward width, R rank. The residual
// stream is fp32 between the two adds and rounded to the compute type at the layer's boundary.
// Backward takes and returns the residual gradient in fp32, rounded where it enters a product.
// Recompute runs forward again: the same kernels on the same input, so the same bits. Engine thread
// only.
#pragma once
#include <array>

#include "model/pass.h"
#include "model/routing.h"

namespace strata::model {

// What backward needs of a forward; the field's tag names (recompute policies name these).
struct LayerActivations {
  TensorView x;        // [T, D] decoder_layer_input
  TensorView q_raw;    // [T, N, H] query_proj, before norm and RoPE
  TensorView k_raw;    // [T, M, H] key_proj
  TensorView v;        // [T, M, H] value_proj
  TensorView context;  // [T, N, H]; latent attention: [T, N, U]
  TensorView lse;      // [T, N] f32
  // Latent attention: C latent width, G = C + rotated width, Q width of the queries' latent.
  TensorView q_a;             // [T, Q] before its norm; empty without q_lora
  TensorView kv_a;            // [T, G] before norm and RoPE
  TensorView latent_context;  // [T, N, C]
  TensorView h;               // [T, D] f32, the residual between the adds (out_proj added)
  TensorView gate;            // [T, F] mlpwi_0; of a sparse layer the shared experts'
  TensorView up;              // [T, F] mlpwi_1
  Routing routing;            // of a sparse layer, with K experts a token
  TensorView expert_gate;     // [T * K, F], rows in the routing's order
  TensorView expert_up;       // [T * K, F]
  std::array<TensorView, kNumProjections> lora_h;  // [T, R]; of experts [T * K, R]
};

// What every recompute mode keeps of a layer: x and, from the scratch, memory for the routing.
LayerActivations take_kept(Pass& pass, int64_t layer, TensorView x);
// Adds the other activations of a layer to what is kept, from the scratch.
LayerActivations take_activations(Pass& pass, int64_t layer, const LayerActivations& kept);
// The same size in bytes, for the memory plan.
int64_t activation_bytes(const ModelConfig& config, LayerKind kind, DType dtype, int64_t num_tokens,
                         int64_t rank_of_each_projection, int64_t rank_of_experts);
// What take_kept takes.
int64_t kept_bytes(const ModelConfig& config, LayerKind kind, int64_t num_tokens);

// Reads acts.x, fills acts (a known routing stays), writes out [T, D]; with an empty out it only
// fills acts, as recompute needs.
void decoder_layer_forward(Pass& pass, int64_t layer, const LayerActivations& acts, TensorView out);

// d [T, D] f32: the gradient of out on entry, of x on return.
void decoder_layer_backward(Pass& pass, int64_t layer, const LayerActivations& acts, TensorView d);

}  // namespace strata::model
