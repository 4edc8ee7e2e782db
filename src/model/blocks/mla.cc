#include "model/mla_block.h"

#include <cstring>

#include "model/block.h"
#include "model/mla_heads.h"
#include "ops/attention.h"
#include "ops/rope.h"

namespace strata::model {
namespace {

// modeling_deepseek_v3.py makes the norms of both latents without the config's eps.
constexpr float kLatentNormEps = 1e-6f;

TensorView lora_h(const LayerActivations& acts, Projection p) {
  return acts.lora_h[static_cast<size_t>(p)];
}

TensorView flat(TensorView heads) {
  return heads.reshape({heads.shape[0], heads.shape[1] * heads.shape[2]});
}

ops::RmsNormArgs latent_norm(TensorView x, TensorView weight) {
  return {.x = x, .weight = weight, .eps = kLatentNormEps};
}

ops::HeadNormRopeArgs rope_args(const Pass& pass, TensorView x) {
  return {.x = x,
          .weight = {},
          .positions = pass.positions,
          .cos = pass.rope.cos(),
          .sin = pass.rope.sin(),
          .interleaved = pass.weights.config().mla.rope_interleave};
}

// One head a token.
TensorView as_head(TensorView rows) { return rows.reshape({rows.rows(), 1, rows.cols()}); }

TensorView zeros(Pass& pass, const Shape& shape) {
  const TensorView view = pass.backend.scratch().take(DType::kF32, shape);
  std::memset(view.data, 0, static_cast<size_t>(view.num_bytes()));
  return view;
}

// The normed latent of the queries, from scratch.
TensorView query_latent(Pass& pass, int64_t layer, TensorView q_a) {
  const TensorView y = pass.backend.scratch().take(pass.dtype(), {q_a.rows(), q_a.cols()});
  const TensorView weight = pass.weights.layer(layer).vec(LayerParam::kQANorm);
  ops::rms_norm(pass.backend, latent_norm(q_a, weight), y, {});
  return y;
}

// What the cache holds, [T, G]: the normed latent and the rotated key, from scratch.
TensorView cache_rows(Pass& pass, int64_t layer, TensorView kv_a) {
  const int64_t latent = pass.weights.config().mla.kv_lora_rank;
  const TensorView rows = pass.backend.scratch().take(pass.dtype(), {kv_a.rows(), kv_a.cols()});
  const TensorView weight = pass.weights.layer(layer).vec(LayerParam::kKvANorm);
  ops::rms_norm(pass.backend, latent_norm(kv_a.slice_cols(0, latent), weight),
                rows.slice_cols(0, latent), {});
  ops::head_norm_rope(pass.backend,
                      rope_args(pass, cols_of_heads(as_head(kv_a), latent, kv_a.cols())),
                      cols_of_heads(as_head(rows), latent, kv_a.cols()));
  return rows;
}

// Queries in latent space, [T, N, G], from scratch.
TensorView latent_queries(Pass& pass, int64_t layer, TensorView q_raw) {
  const MlaConfig& mla = pass.weights.config().mla;
  const TensorView q = pass.backend.scratch().take(
      pass.dtype(), {q_raw.shape[0], q_raw.shape[1], mla.cache_width()});
  absorb_queries(pass, layer, q_raw, q);
  ops::head_norm_rope(pass.backend,
                      rope_args(pass, cols_of_heads(q_raw, mla.nope_dim, q_raw.cols())),
                      cols_of_heads(q, mla.kv_lora_rank, q.cols()));
  return q;
}

char* layer_page(const Pass& pass, const KvPages& kv, int64_t page, int64_t layer) {
  const int64_t width = pass.weights.config().cache_width();
  return static_cast<char*>(kv.pages[static_cast<size_t>(page)]) +
         layer * kv.page_size * width * dtype_bytes(pass.dtype());
}

// The sequence's cache of this layer after the new rows are written to it, or one long page in
// `rows` itself.
ops::KvView kv_view(Pass& pass, int64_t layer, const PassSequence& sequence, TensorView rows) {
  const int64_t row_bytes = rows.cols() * dtype_bytes(rows.dtype);
  const bool cached = !sequence.kv.pages.empty();
  const int64_t length = sequence.first_position + sequence.end - sequence.begin;
  const int64_t page_size = cached ? sequence.kv.page_size : length;
  const int64_t num_pages = (length + page_size - 1) / page_size;
  void** pages = static_cast<void**>(
      pass.backend.scratch().take(num_pages * static_cast<int64_t>(sizeof(void*))));
  for (int64_t page = 0; page < num_pages; ++page) {
    pages[page] = cached ? layer_page(pass, sequence.kv, page, layer) : rows.row(sequence.begin);
  }
  for (int64_t row = sequence.begin; cached && row < sequence.end; ++row) {
    const int64_t position = sequence.first_position + row - sequence.begin;
    std::memcpy(static_cast<char*>(pages[position / page_size]) + position % page_size * row_bytes,
                rows.row(row), static_cast<size_t>(row_bytes));
  }
  const std::span<void* const> span(pages, static_cast<size_t>(num_pages));
  return {.k_pages = span, .v_pages = span, .page_size = page_size, .position_stride = rows.cols()};
}

ops::AttentionArgs attention_args(Pass& pass, int64_t layer, TensorView q, TensorView rows) {
  const ModelConfig& c = pass.weights.config();
  const auto count = pass.sequences.size();
  auto* list = static_cast<ops::AttentionSegment*>(
      pass.backend.scratch().take(static_cast<int64_t>(count * sizeof(ops::AttentionSegment))));
  for (size_t i = 0; i < count; ++i) {
    const PassSequence& sequence = pass.sequences[i];
    list[i] = {.begin = sequence.begin,
               .end = sequence.end,
               .first_position = sequence.first_position,
               .kv = kv_view(pass, layer, sequence, rows)};
  }
  return {.q = q,
          .segments = {list, count},
          .num_kv_heads = 1,
          .scale = c.attention_scale(),
          .value_dim = c.mla.kv_lora_rank};
}

void queries_forward(Pass& pass, int64_t layer, TensorView n, const LayerActivations& acts) {
  const ModelWeights& w = pass.weights;
  if (acts.q_a.empty()) {
    linear_forward(pass, pass.rows, layer_linear(w, layer, Projection::kQ), n, {},
                   lora_h(acts, Projection::kQ), flat(acts.q_raw));
    return;
  }
  linear_forward(pass, pass.rows, layer_linear(w, layer, Projection::kQA), n, {},
                 lora_h(acts, Projection::kQA), acts.q_a);
  const Scratch::Mark mark(pass.backend.scratch());
  linear_forward(pass, pass.rows, layer_linear(w, layer, Projection::kQB),
                 query_latent(pass, layer, acts.q_a), {}, lora_h(acts, Projection::kQB),
                 flat(acts.q_raw));
}

// Writes d_n [T, D] f32.
void queries_backward(Pass& pass, int64_t layer, TensorView n, const LayerActivations& acts,
                      TensorView d_q_raw, TensorView d_n) {
  const ModelWeights& w = pass.weights;
  const Scratch::Mark mark(pass.backend.scratch());
  const auto backward = [&](Projection p, TensorView x, TensorView dy, TensorView dx) {
    const LinearWeights linear = layer_linear(w, layer, p);
    linear_backward(pass, pass.rows, linear, x, lora_h(acts, p), dy, dx, false,
                    base_gradient(pass, linear.weight_index));
  };
  if (acts.q_a.empty()) return backward(Projection::kQ, n, flat(d_q_raw), d_n);
  const Shape shape = {acts.q_a.rows(), acts.q_a.cols()};
  const TensorView d_latent = pass.backend.scratch().take(DType::kF32, shape);
  backward(Projection::kQB, query_latent(pass, layer, acts.q_a), flat(d_q_raw), d_latent);
  // q_latent = norm(q_a)
  const TensorView d_q_a = zeros(pass, shape);
  ops::rms_norm_backward(
      pass.backend, latent_norm(acts.q_a, w.layer(layer).vec(LayerParam::kQANorm)), {}, d_latent,
      d_q_a, base_gradient(pass, w.layer_index(layer, LayerParam::kQANorm)));
  backward(Projection::kQA, n, rounded(pass, d_q_a), d_n);
}

// d_kv_a [T, G] f32 from the gradients of the rows as keys [T, 1, G] and as values [T, 1, C]; adds
// the latter to the former.
TensorView cache_rows_backward(Pass& pass, int64_t layer, TensorView kv_a, TensorView d_keys,
                               TensorView d_values) {
  const ModelWeights& w = pass.weights;
  const int64_t latent = w.config().mla.kv_lora_rank;
  const TensorView d_latent = cols_of_heads(d_keys, 0, latent);
  ops::add_into(pass.backend, d_values, d_latent);
  const TensorView d_kv_a = zeros(pass, {kv_a.rows(), kv_a.cols()});
  const TensorView d_rows = d_keys.reshape({kv_a.rows(), kv_a.cols()});
  ops::rms_norm_backward(
      pass.backend,
      latent_norm(kv_a.slice_cols(0, latent), w.layer(layer).vec(LayerParam::kKvANorm)), {},
      d_rows.slice_cols(0, latent), d_kv_a.slice_cols(0, latent),
      base_gradient(pass, w.layer_index(layer, LayerParam::kKvANorm)));
  ops::head_norm_rope_backward(pass.backend,
                               rope_args(pass, cols_of_heads(as_head(kv_a), latent, kv_a.cols())),
                               cols_of_heads(d_keys, latent, kv_a.cols()),
                               cols_of_heads(as_head(d_kv_a), latent, kv_a.cols()), {});
  return d_kv_a;
}

// From d_context to d_q_raw and d_kv_a, with the gradients of kv_b_proj.
void attend_backward(Pass& pass, int64_t layer, const LayerActivations& acts, TensorView d_context,
                     TensorView d_q_raw, TensorView d_kv_a) {
  Scratch& scratch = pass.backend.scratch();
  const Scratch::Mark mark(scratch);
  const MlaConfig& mla = pass.weights.config().mla;
  const int64_t tokens = pass.num_tokens();
  const HeadLowRank h = take_head_low_rank(pass, layer);
  const TensorView d_latent = scratch.take(pass.dtype(), acts.latent_context.shape);
  expand_context_backward(pass, layer, acts.latent_context, d_context, h, d_latent);
  const TensorView q = latent_queries(pass, layer, acts.q_raw);
  const TensorView rows = cache_rows(pass, layer, acts.kv_a);
  const TensorView d_q = scratch.take(pass.dtype(), q.shape);
  const TensorView d_keys = scratch.take(DType::kF32, {tokens, 1, mla.cache_width()});
  const TensorView d_values = scratch.take(DType::kF32, {tokens, 1, mla.kv_lora_rank});
  ops::attention_backward(pass.backend, attention_args(pass, layer, q, rows), acts.latent_context,
                          acts.lse, d_latent, d_q, d_keys, d_values);
  absorb_queries_backward(pass, layer, acts.q_raw, d_q, h, d_q_raw);
  ops::head_norm_rope_backward(
      pass.backend, rope_args(pass, cols_of_heads(acts.q_raw, mla.nope_dim, acts.q_raw.cols())),
      cols_of_heads(d_q, mla.kv_lora_rank, d_q.cols()),
      cols_of_heads(d_q_raw, mla.nope_dim, d_q_raw.cols()), {});
  kv_b_gradients(pass, layer, acts.q_raw, d_q, acts.latent_context, d_context, h);
  ops::copy(pass.backend, cache_rows_backward(pass, layer, acts.kv_a, d_keys, d_values), d_kv_a);
}

}  // namespace

void take_mla_activations(Pass& pass, LayerActivations& acts) {
  const ModelConfig& c = pass.weights.config();
  Scratch& scratch = pass.backend.scratch();
  const int64_t tokens = pass.num_tokens();
  const DType dtype = pass.dtype();
  if (c.mla.q_lora_rank > 0) acts.q_a = scratch.take(dtype, {tokens, c.mla.q_lora_rank});
  acts.q_raw = scratch.take(dtype, {tokens, c.num_heads, c.head_dim});
  acts.kv_a = scratch.take(dtype, {tokens, c.mla.cache_width()});
  acts.latent_context = scratch.take(dtype, {tokens, c.num_heads, c.mla.kv_lora_rank});
  acts.context = scratch.take(dtype, {tokens, c.num_heads, c.mla.value_dim});
  acts.lse = scratch.take(DType::kF32, {tokens, c.num_heads});
}

int64_t mla_activation_bytes(const ModelConfig& c, DType dtype, int64_t tokens) {
  const auto bytes = [&](int64_t width) {
    return Arena::aligned(tokens * width * dtype_bytes(dtype));
  };
  return bytes(c.mla.q_lora_rank) + bytes(c.q_width()) + bytes(c.mla.cache_width()) +
         bytes(c.num_heads * c.mla.kv_lora_rank) + bytes(c.num_heads * c.mla.value_dim) +
         Arena::aligned(tokens * c.num_heads * 4);
}

int64_t mla_temporary_bytes(const ModelConfig& c, DType dtype, int64_t tokens, int64_t rank,
                            bool backward) {
  const int64_t e = dtype_bytes(dtype);
  const int64_t queries = c.num_heads * c.mla.cache_width() * e;
  const int64_t low_rank = c.num_heads * rank * e;
  const int64_t rows = c.mla.cache_width() * e;
  if (!backward) {
    return tokens *
           (c.hidden_size * e + std::max(c.mla.q_lora_rank * e, queries + rows + low_rank));
  }
  const int64_t kept = (c.num_heads * (c.head_dim + c.mla.value_dim) + c.mla.cache_width()) * e;
  const int64_t attend = 5 * low_rank + c.num_heads * c.mla.kv_lora_rank * e + 2 * queries + rows +
                         3 * c.mla.cache_width() * 4;
  const int64_t project = c.hidden_size * (2 * e + 8) + c.mla.q_lora_rank * (2 * e + 8);
  return tokens * (kept + std::max(attend, project) + c.hidden_size * e);
}

void mla_forward(Pass& pass, int64_t layer, const LayerActivations& acts) {
  const Scratch::Mark mark(pass.backend.scratch());
  const ModelWeights& w = pass.weights;
  const TensorView n = normed(pass, acts.x, w.layer(layer).vec(LayerParam::kInputNorm));
  queries_forward(pass, layer, n, acts);
  linear_forward(pass, pass.rows, layer_linear(w, layer, Projection::kKvA), n, {},
                 lora_h(acts, Projection::kKvA), acts.kv_a);
  const TensorView q = latent_queries(pass, layer, acts.q_raw);
  const TensorView rows = cache_rows(pass, layer, acts.kv_a);
  ops::attention(pass.backend, attention_args(pass, layer, q, rows), acts.latent_context, acts.lse);
  expand_context(pass, layer, acts.latent_context, acts.context);
  linear_forward(pass, pass.rows, layer_linear(w, layer, Projection::kO), flat(acts.context),
                 acts.x, lora_h(acts, Projection::kO), acts.h);
}

void mla_backward(Pass& pass, int64_t layer, const LayerActivations& acts, TensorView d) {
  CHECK(!pass.cached());
  Scratch& scratch = pass.backend.scratch();
  const Scratch::Mark mark(scratch);
  const ModelWeights& w = pass.weights;
  const LinearWeights kv_a = layer_linear(w, layer, Projection::kKvA);
  const LinearWeights o_proj = layer_linear(w, layer, Projection::kO);
  const TensorView d_q_raw = scratch.take(pass.dtype(), acts.q_raw.shape);
  const TensorView d_kv_a = scratch.take(pass.dtype(), acts.kv_a.shape);
  {
    const Scratch::Mark inner(scratch);
    const TensorView d_context = scratch.take(pass.dtype(), acts.context.shape);
    // h = x + o_proj(context)
    linear_backward(pass, pass.rows, o_proj, flat(acts.context), lora_h(acts, Projection::kO),
                    rounded(pass, d), flat(d_context), false,
                    base_gradient(pass, o_proj.weight_index));
    attend_backward(pass, layer, acts, d_context, d_q_raw, d_kv_a);
  }
  const TensorView norm_weight = w.layer(layer).vec(LayerParam::kInputNorm);
  const TensorView n = normed(pass, acts.x, norm_weight);
  const TensorView d_n = scratch.take(DType::kF32, {d.rows(), d.cols()});
  queries_backward(pass, layer, n, acts, d_q_raw, d_n);
  linear_backward(pass, pass.rows, kv_a, n, lora_h(acts, Projection::kKvA), d_kv_a, d_n, true,
                  base_gradient(pass, kv_a.weight_index));
  // n = norm(x); the residual path is d itself
  ops::rms_norm_backward(pass.backend, norm_args(pass, acts.x, norm_weight), {}, d_n, d,
                         base_gradient(pass, w.layer_index(layer, LayerParam::kInputNorm)));
}

}  // namespace strata::model
