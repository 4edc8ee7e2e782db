#include "model/decoder_layer.h"

#include "model/attention_block.h"
#include "model/linear.h"
#include "model/mla_block.h"
#include "model/mlp_block.h"
#include "model/moe_block.h"

namespace strata::model {

namespace {

// Calls one of the two by the layer's kind.
template <typename Gqa, typename Mla>
void by_attention(LayerKind kind, Gqa gqa, Mla mla) {
  switch (kind.attention) {
    case AttentionKind::kGqa:
      return gqa();
    case AttentionKind::kMla:
      return mla();
  }
}

template <typename Dense, typename Moe>
void by_mlp(LayerKind kind, Dense dense, Moe moe) {
  switch (kind.mlp) {
    case MlpKind::kDense:
      return dense();
    case MlpKind::kMoe:
      return moe();
  }
}

}  // namespace

LayerActivations take_kept(Pass& pass, int64_t layer, TensorView x) {
  LayerActivations acts;
  acts.x = x;
  const bool sparse = pass.weights.config().layer_kind(layer).mlp == MlpKind::kMoe;
  if (sparse) acts.routing = take_routing(pass);
  return acts;
}

int64_t kept_bytes(const ModelConfig& config, LayerKind kind, int64_t tokens) {
  return kind.mlp == MlpKind::kMoe ? routing_bytes(config, tokens) : 0;
}

LayerActivations take_activations(Pass& pass, int64_t layer, const LayerActivations& kept) {
  const ModelConfig& c = pass.weights.config();
  const LayerKind kind = c.layer_kind(layer);
  LayerActivations acts = kept;
  by_attention(
      kind, [&] { take_attention_activations(pass, acts); },
      [&] { take_mla_activations(pass, acts); });
  acts.h = pass.backend.scratch().take(DType::kF32, {pass.num_tokens(), c.hidden_size});
  by_mlp(
      kind, [&] { take_mlp_activations(pass, acts); }, [&] { take_moe_activations(pass, acts); });
  for (int p = 0; p < kNumProjections; ++p) {
    if (p == static_cast<int>(Projection::kKvB)) continue;  // made again in backward
    const int64_t rank = largest_rank(pass.rows, layer, p);
    if (rank == 0) continue;
    const int64_t rows =
        pass.num_tokens() * (is_expert(static_cast<Projection>(p)) ? c.moe.top_k : 1);
    acts.lora_h[static_cast<size_t>(p)] = pass.backend.scratch().take(pass.dtype(), {rows, rank});
  }
  return acts;
}

int64_t activation_bytes(const ModelConfig& c, LayerKind kind, DType dtype, int64_t tokens,
                         int64_t rank, int64_t expert_rank) {
  int64_t bytes = Arena::aligned(tokens * c.hidden_size * 4);
  by_attention(
      kind, [&] { bytes += attention_activation_bytes(c, dtype, tokens); },
      [&] { bytes += mla_activation_bytes(c, dtype, tokens); });
  by_mlp(
      kind, [&] { bytes += mlp_activation_bytes(c, dtype, tokens); },
      [&] { bytes += moe_activation_bytes(c, dtype, tokens); });
  for (int p = 0; p < kNumProjections; ++p) {
    const auto projection = static_cast<Projection>(p);
    if (projection == Projection::kKvB || projection_widths(c, kind, projection)[0] == 0) continue;
    const int64_t width = is_expert(projection) ? c.moe.top_k * expert_rank : rank;
    bytes += Arena::aligned(tokens * width * dtype_bytes(dtype));
  }
  return bytes;
}

void decoder_layer_forward(Pass& pass, int64_t layer, const LayerActivations& acts,
                           TensorView out) {
  const LayerKind kind = pass.weights.config().layer_kind(layer);
  // h = x + attention(norm(x))
  by_attention(
      kind, [&] { attention_forward(pass, layer, acts); }, [&] { mla_forward(pass, layer, acts); });
  // out = h + mlp(norm(h))
  by_mlp(
      kind, [&] { mlp_forward(pass, layer, acts, out); },
      [&] { moe_forward(pass, layer, acts, out); });
}

void decoder_layer_backward(Pass& pass, int64_t layer, const LayerActivations& acts, TensorView d) {
  const LayerKind kind = pass.weights.config().layer_kind(layer);
  by_mlp(
      kind, [&] { mlp_backward(pass, layer, acts, d); },
      [&] { moe_backward(pass, layer, acts, d); });
  by_attention(
      kind, [&] { attention_backward(pass, layer, acts, d); },
      [&] { mla_backward(pass, layer, acts, d); });
}

}  // namespace strata::model
