#include "model/attention_block.h"

#include <cstring>

#include "model/block.h"
#include "ops/attention.h"
#include "ops/rope.h"

namespace strata::model {
namespace {

TensorView lora_h(const LayerActivations& acts, Projection p) {
  return acts.lora_h[static_cast<size_t>(p)];
}

TensorView flat(TensorView heads) {
  return heads.reshape({heads.shape[0], heads.shape[1] * heads.shape[2]});
}

ops::HeadNormRopeArgs rope_args(const Pass& pass, TensorView x, TensorView norm_weight) {
  return {.x = x,
          .weight = norm_weight,
          .eps = static_cast<float>(pass.weights.config().rms_norm_eps),
          .positions = pass.positions,
          .cos = pass.rope.cos(),
          .sin = pass.rope.sin()};
}

// q or k after norm and RoPE, from scratch.
TensorView rotated(Pass& pass, TensorView raw, TensorView norm_weight) {
  const TensorView y = pass.backend.scratch().take(pass.dtype(), raw.shape);
  ops::head_norm_rope(pass.backend, rope_args(pass, raw, norm_weight), y);
  return y;
}

// Address of a sequence's keys (side 0) or values (side 1) of this layer in a page.
char* page_part(const Pass& pass, const KvPages& kv, int64_t page, int64_t layer, int64_t side) {
  const int64_t width = pass.weights.config().kv_width();
  const int64_t offset = (2 * layer + side) * kv.page_size * width * dtype_bytes(pass.dtype());
  return static_cast<char*>(kv.pages[static_cast<size_t>(page)]) + offset;
}

// Writes the new rows of keys and values to the sequence's pages.
void store_kv(Pass& pass, int64_t layer, const PassSequence& sequence, TensorView k, TensorView v) {
  const int64_t row_bytes = pass.weights.config().kv_width() * dtype_bytes(pass.dtype());
  for (int64_t row = sequence.begin; row < sequence.end; ++row) {
    const int64_t position = sequence.first_position + row - sequence.begin;
    const int64_t page = position / sequence.kv.page_size;
    const int64_t slot = position % sequence.kv.page_size;
    std::memcpy(page_part(pass, sequence.kv, page, layer, 0) + slot * row_bytes,
                static_cast<char*>(k.data) + row * row_bytes, static_cast<size_t>(row_bytes));
    std::memcpy(page_part(pass, sequence.kv, page, layer, 1) + slot * row_bytes,
                static_cast<char*>(v.data) + row * row_bytes, static_cast<size_t>(row_bytes));
  }
}

// The sequence's keys and values of this layer: its cache pages, or one long page in k and v
// themselves.
ops::KvView kv_view(Pass& pass, int64_t layer, const PassSequence& sequence, TensorView k,
                    TensorView v) {
  Scratch& scratch = pass.backend.scratch();
  const int64_t width = pass.weights.config().kv_width();
  const int64_t length = sequence.first_position + sequence.end - sequence.begin;
  const bool cached = !sequence.kv.pages.empty();
  const int64_t page_size = cached ? sequence.kv.page_size : length;
  const int64_t num_pages = (length + page_size - 1) / page_size;
  const auto count = static_cast<size_t>(num_pages);
  void** k_pages =
      static_cast<void**>(scratch.take(num_pages * static_cast<int64_t>(sizeof(void*))));
  void** v_pages =
      static_cast<void**>(scratch.take(num_pages * static_cast<int64_t>(sizeof(void*))));
  for (int64_t page = 0; page < num_pages; ++page) {
    const int64_t offset = sequence.begin * width * dtype_bytes(pass.dtype());
    k_pages[page] =
        cached ? page_part(pass, sequence.kv, page, layer, 0) : static_cast<char*>(k.data) + offset;
    v_pages[page] =
        cached ? page_part(pass, sequence.kv, page, layer, 1) : static_cast<char*>(v.data) + offset;
  }
  return {.k_pages = {k_pages, count},
          .v_pages = {v_pages, count},
          .page_size = page_size,
          .position_stride = width};
}

// The batch's segments, from scratch.
std::span<const ops::AttentionSegment> segments(Pass& pass, int64_t layer, TensorView k,
                                                TensorView v) {
  const auto count = pass.sequences.size();
  auto* list = static_cast<ops::AttentionSegment*>(
      pass.backend.scratch().take(static_cast<int64_t>(count * sizeof(ops::AttentionSegment))));
  for (size_t i = 0; i < count; ++i) {
    const PassSequence& sequence = pass.sequences[i];
    if (!sequence.kv.pages.empty()) store_kv(pass, layer, sequence, k, v);
    list[i] = {.begin = sequence.begin,
               .end = sequence.end,
               .first_position = sequence.first_position,
               .kv = kv_view(pass, layer, sequence, k, v)};
  }
  return {list, count};
}

ops::AttentionArgs attention_args(const Pass& pass, TensorView q,
                                  std::span<const ops::AttentionSegment> list) {
  const ModelConfig& c = pass.weights.config();
  return {.q = q, .segments = list, .num_kv_heads = c.num_kv_heads, .scale = c.attention_scale()};
}

}  // namespace

void take_attention_activations(Pass& pass, LayerActivations& acts) {
  const ModelConfig& c = pass.weights.config();
  Scratch& scratch = pass.backend.scratch();
  const int64_t tokens = pass.num_tokens();
  const DType dtype = pass.dtype();
  acts.q_raw = scratch.take(dtype, {tokens, c.num_heads, c.head_dim});
  acts.k_raw = scratch.take(dtype, {tokens, c.num_kv_heads, c.head_dim});
  acts.v = scratch.take(dtype, {tokens, c.num_kv_heads, c.head_dim});
  acts.context = scratch.take(dtype, {tokens, c.num_heads, c.head_dim});
  acts.lse = scratch.take(DType::kF32, {tokens, c.num_heads});
}

int64_t attention_activation_bytes(const ModelConfig& c, DType dtype, int64_t tokens) {
  const int64_t element = dtype_bytes(dtype);
  return 2 * Arena::aligned(tokens * c.q_width() * element) +
         2 * Arena::aligned(tokens * c.kv_width() * element) +
         Arena::aligned(tokens * c.num_heads * 4);
}

void attention_forward(Pass& pass, int64_t layer, const LayerActivations& acts) {
  const Scratch::Mark mark(pass.backend.scratch());
  const ModelWeights& w = pass.weights;
  const LayerWeights& weights = w.layer(layer);
  const TensorView n = normed(pass, acts.x, weights.vec(LayerParam::kInputNorm));
  linear_forward(pass, pass.rows, layer_linear(w, layer, Projection::kQ), n, {},
                 lora_h(acts, Projection::kQ), flat(acts.q_raw));
  linear_forward(pass, pass.rows, layer_linear(w, layer, Projection::kK), n, {},
                 lora_h(acts, Projection::kK), flat(acts.k_raw));
  linear_forward(pass, pass.rows, layer_linear(w, layer, Projection::kV), n, {},
                 lora_h(acts, Projection::kV), flat(acts.v));
  const TensorView q = rotated(pass, acts.q_raw, weights.vec(LayerParam::kQNorm));
  const TensorView k = rotated(pass, acts.k_raw, weights.vec(LayerParam::kKNorm));
  ops::attention(pass.backend, attention_args(pass, q, segments(pass, layer, k, acts.v)),
                 acts.context, acts.lse);
  linear_forward(pass, pass.rows, layer_linear(w, layer, Projection::kO), flat(acts.context),
                 acts.x, lora_h(acts, Projection::kO), acts.h);
}

void attention_backward(Pass& pass, int64_t layer, const LayerActivations& acts, TensorView d) {
  CHECK(!pass.cached());
  Backend& backend = pass.backend;
  Scratch& scratch = backend.scratch();
  const Scratch::Mark mark(scratch);
  const ModelWeights& w = pass.weights;
  const LayerWeights& weights = w.layer(layer);
  const TensorView q_norm = weights.vec(LayerParam::kQNorm);
  const TensorView k_norm = weights.vec(LayerParam::kKNorm);
  const LinearWeights q_proj = layer_linear(w, layer, Projection::kQ);
  const LinearWeights k_proj = layer_linear(w, layer, Projection::kK);
  const LinearWeights v_proj = layer_linear(w, layer, Projection::kV);
  const LinearWeights o_proj = layer_linear(w, layer, Projection::kO);

  const TensorView d_q = scratch.take(pass.dtype(), acts.q_raw.shape);
  const TensorView d_k = scratch.take(pass.dtype(), acts.k_raw.shape);
  const TensorView d_v = scratch.take(pass.dtype(), acts.v.shape);
  {
    const Scratch::Mark inner(scratch);
    const TensorView d_context = scratch.take(pass.dtype(), acts.context.shape);
    // h = x + o_proj(context)
    linear_backward(pass, pass.rows, o_proj, flat(acts.context), lora_h(acts, Projection::kO),
                    rounded(pass, d), flat(d_context), false,
                    base_gradient(pass, o_proj.weight_index));
    const TensorView q = rotated(pass, acts.q_raw, q_norm);
    const TensorView k = rotated(pass, acts.k_raw, k_norm);
    const TensorView d_q_rotated = scratch.take(DType::kF32, acts.q_raw.shape);
    const TensorView d_k_rotated = scratch.take(DType::kF32, acts.k_raw.shape);
    ops::attention_backward(backend, attention_args(pass, q, segments(pass, layer, k, acts.v)),
                            acts.context, acts.lse, d_context, d_q_rotated, d_k_rotated, d_v);
    ops::head_norm_rope_backward(backend, rope_args(pass, acts.q_raw, q_norm), d_q_rotated, d_q,
                                 base_gradient(pass, w.layer_index(layer, LayerParam::kQNorm)));
    ops::head_norm_rope_backward(backend, rope_args(pass, acts.k_raw, k_norm), d_k_rotated, d_k,
                                 base_gradient(pass, w.layer_index(layer, LayerParam::kKNorm)));
  }
  const TensorView norm_weight = weights.vec(LayerParam::kInputNorm);
  const TensorView n = normed(pass, acts.x, norm_weight);
  const TensorView d_n = scratch.take(DType::kF32, {d.rows(), d.cols()});
  linear_backward(pass, pass.rows, q_proj, n, lora_h(acts, Projection::kQ), flat(d_q), d_n, false,
                  base_gradient(pass, q_proj.weight_index));
  linear_backward(pass, pass.rows, k_proj, n, lora_h(acts, Projection::kK), flat(d_k), d_n, true,
                  base_gradient(pass, k_proj.weight_index));
  linear_backward(pass, pass.rows, v_proj, n, lora_h(acts, Projection::kV), flat(d_v), d_n, true,
                  base_gradient(pass, v_proj.weight_index));
  // n = norm(x); the residual path is d itself
  ops::rms_norm_backward(backend, norm_args(pass, acts.x, norm_weight), {}, d_n, d,
                         base_gradient(pass, w.layer_index(layer, LayerParam::kInputNorm)));
}

}  // namespace strata::model
