#include "model/decoder_layer.h"

#include "model/attention_block.h"
#include "model/linear.h"
#include "model/mlp_block.h"

namespace strata::model {

LayerActivations take_activations(Pass& pass, int64_t layer, TensorView x) {
  const ModelConfig& c = pass.weights.config();
  Scratch& scratch = pass.backend.scratch();
  const int64_t tokens = pass.num_tokens();
  const DType dtype = pass.dtype();
  LayerActivations acts;
  acts.x = x;
  acts.q_raw = scratch.take(dtype, {tokens, c.num_heads, c.head_dim});
  acts.k_raw = scratch.take(dtype, {tokens, c.num_kv_heads, c.head_dim});
  acts.v = scratch.take(dtype, {tokens, c.num_kv_heads, c.head_dim});
  acts.context = scratch.take(dtype, {tokens, c.num_heads, c.head_dim});
  acts.lse = scratch.take(DType::kF32, {tokens, c.num_heads});
  acts.h = scratch.take(DType::kF32, {tokens, c.hidden_size});
  acts.gate = scratch.take(dtype, {tokens, c.intermediate_size});
  acts.up = scratch.take(dtype, {tokens, c.intermediate_size});
  for (int kind = 0; kind < kNumProjections; ++kind) {
    const int64_t rank = largest_rank(pass.rows, layer, kind);
    if (rank > 0) acts.lora_h[static_cast<size_t>(kind)] = scratch.take(dtype, {tokens, rank});
  }
  return acts;
}

int64_t activation_bytes(const ModelConfig& c, DType dtype, int64_t tokens, int64_t rank) {
  const int64_t element = dtype_bytes(dtype);
  int64_t bytes = 2 * Arena::aligned(tokens * c.q_width() * element) +
                  2 * Arena::aligned(tokens * c.kv_width() * element) +
                  Arena::aligned(tokens * c.num_heads * 4) +
                  Arena::aligned(tokens * c.hidden_size * 4) +
                  2 * Arena::aligned(tokens * c.intermediate_size * element);
  if (rank > 0) bytes += kNumProjections * Arena::aligned(tokens * rank * element);
  return bytes;
}

void decoder_layer_forward(Pass& pass, int64_t layer, const LayerActivations& acts,
                           TensorView out) {
  attention_forward(pass, layer, acts);  // h = x + attention(norm(x))
  mlp_forward(pass, layer, acts, out);   // out = h + mlp(norm(h))
}

void decoder_layer_backward(Pass& pass, int64_t layer, const LayerActivations& acts, TensorView d) {
  mlp_backward(pass, layer, acts, d);
  attention_backward(pass, layer, acts, d);
}

}  // namespace strata::model
