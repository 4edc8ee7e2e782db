// SPDX-License-Identifier: Apache-2.0
// T tokens, D model width, N query heads, Q width of the queries' latent, C latent width, G = C +
// rotated width, U value width, R rank.
#include "model/blocks/mla.h"

#include <fmt/format.h>

#include <array>

#include "model/blocks/attention_config.h"
#include "model/blocks/head_ranks.h"
#include "model/blocks/kv_segments.h"
#include "model/blocks/mla_heads.h"
#include "model/linear.h"
#include "model/residual.h"
#include "ops/attention.h"
#include "ops/rope.h"

namespace strata::model {
namespace {

// modeling_deepseek_v3.py makes the norms of both latents without the config's eps.
constexpr float kLatentNormEps = 1e-6f;

struct MlaSaved {
  TensorView q_a;             // [T, Q] query_wa_proj, before its norm; empty without q_lora
  TensorView q_raw;           // [T, N, H] query_proj
  TensorView kv_a;            // [T, G] kv_wa_proj, before norm and RoPE
  TensorView latent_context;  // [T, N, C]
  TensorView context;         // [T, N, U]
  TensorView lse;             // [T, N] f32
  std::array<TensorView, kMlaO + 1> lora_h;  // kv_b_proj's is recomputed in backward
};

ops::RmsNormArgs latent_norm(TensorView x, TensorView weight) {
  return {.x = x, .weight = weight, .eps = kLatentNormEps};
}

ops::HeadNormRopeArgs rope_args(const Pass& pass, const BlockContext& context, TensorView x) {
  const auto& c = context.as<MlaConfig>();
  const RopeTable& rope = pass.ropes[c.rope];
  return {.x = x,
          .weight = {},
          .positions = pass.positions,
          .cos = rope.cos(),
          .sin = rope.sin(),
          .interleaved = c.rope_interleave};
}

// The normed latent of the queries, from scratch.
TensorView norm_query_latent(Pass& pass, const BlockContext& context, TensorView q_a) {
  const TensorView y = pass.take(pass.dtype(), {q_a.rows(), q_a.cols()});
  const TensorView weight = context.values(kMlaQANorm);
  ops::rms_norm(pass.backend, latent_norm(q_a, weight), y, {});
  return y;
}

// What the cache holds, [T, G]: the normed latent and the rotated key, from scratch.
TensorView make_cache_rows(Pass& pass, const BlockContext& context, TensorView kv_a) {
  const int64_t latent = context.as<MlaConfig>().kv_lora_rank;
  const TensorView rows = pass.take(pass.dtype(), {kv_a.rows(), kv_a.cols()});
  const TensorView weight = context.values(kMlaKvANorm);
  ops::rms_norm(pass.backend, latent_norm(kv_a.slice_cols(0, latent), weight),
                rows.slice_cols(0, latent), {});
  ops::head_norm_rope(
      pass.backend, rope_args(pass, context, cols_of_all_heads(as_head(kv_a), latent, kv_a.cols())),
      cols_of_all_heads(as_head(rows), latent, kv_a.cols()));
  return rows;
}

// Queries in latent space, [T, N, G], from scratch.
TensorView make_latent_queries(Pass& pass, const BlockContext& context, TensorView q_raw) {
  const MlaConfig& mla = context.as<MlaConfig>();
  const TensorView q = pass.take(pass.dtype(), {q_raw.shape[0], q_raw.shape[1], mla.cache_width()});
  absorb_queries(pass, context, q_raw, q);
  ops::head_norm_rope(
      pass.backend, rope_args(pass, context, cols_of_all_heads(q_raw, mla.nope_dim, q_raw.cols())),
      cols_of_all_heads(q, mla.kv_lora_rank, q.cols()));
  return q;
}

ops::AttentionArgs prepare_attention(Pass& pass, const BlockContext& context, TensorView q,
                                     TensorView rows) {
  const auto& c = context.as<MlaConfig>();
  return {.q = q,
          .segments = prepare_kv_segments(pass, context, rows, {}),
          .num_kv_heads = 1,
          .scale = c.scale,
          .value_dim = c.kv_lora_rank};
}

void queries_forward(Pass& pass, const BlockContext& context, TensorView n, const MlaSaved& s) {
  if (s.q_a.empty())
    return linear_forward(pass, context, kMlaQ, n, {}, s.lora_h[kMlaQ], flat(s.q_raw));
  linear_forward(pass, context, kMlaQA, n, {}, s.lora_h[kMlaQA], s.q_a);
  const Scratch::Mark mark(pass.backend.scratch());
  linear_forward(pass, context, kMlaQB, norm_query_latent(pass, context, s.q_a), {},
                 s.lora_h[kMlaQB], flat(s.q_raw));
}

// Writes d_n [T, D] f32.
void queries_backward(Pass& pass, const BlockContext& context, TensorView n, const MlaSaved& s,
                      TensorView d_q_raw, TensorView d_n) {
  const Scratch::Mark mark(pass.backend.scratch());
  if (s.q_a.empty())
    return linear_backward(pass, context, kMlaQ, n, s.lora_h[kMlaQ], flat(d_q_raw), d_n, false);
  const Shape shape = {s.q_a.rows(), s.q_a.cols()};
  const TensorView d_latent = pass.take(DType::kF32, shape);
  linear_backward(pass, context, kMlaQB, norm_query_latent(pass, context, s.q_a), s.lora_h[kMlaQB],
                  flat(d_q_raw), d_latent, false);
  // q_latent = norm(q_a)
  const TensorView d_q_a = zeros(pass, shape);
  ops::rms_norm_backward(pass.backend, latent_norm(s.q_a, context.values(kMlaQANorm)), {}, d_latent,
                         d_q_a, pass.base_gradient(context.param(kMlaQANorm).index));
  linear_backward(pass, context, kMlaQA, n, s.lora_h[kMlaQA], to_compute_dtype(pass, d_q_a), d_n,
                  false);
}

// d_kv_a [T, G] f32 from the gradients of the rows as keys [T, 1, G] and as values [T, 1, C]; adds
// the latter to the former.
TensorView cache_rows_backward(Pass& pass, const BlockContext& context, TensorView kv_a,
                               TensorView d_keys, TensorView d_values) {
  const int64_t latent = context.as<MlaConfig>().kv_lora_rank;
  const TensorView d_latent = cols_of_all_heads(d_keys, 0, latent);
  ops::add_into(pass.backend, d_values, d_latent);
  const TensorView d_kv_a = zeros(pass, {kv_a.rows(), kv_a.cols()});
  const TensorView d_rows = d_keys.reshape({kv_a.rows(), kv_a.cols()});
  ops::rms_norm_backward(pass.backend,
                         latent_norm(kv_a.slice_cols(0, latent), context.values(kMlaKvANorm)), {},
                         d_rows.slice_cols(0, latent), d_kv_a.slice_cols(0, latent),
                         pass.base_gradient(context.param(kMlaKvANorm).index));
  ops::head_norm_rope_backward(
      pass.backend, rope_args(pass, context, cols_of_all_heads(as_head(kv_a), latent, kv_a.cols())),
      cols_of_all_heads(d_keys, latent, kv_a.cols()),
      cols_of_all_heads(as_head(d_kv_a), latent, kv_a.cols()), {});
  return d_kv_a;
}

// All heads read the same keys, of which every tensor rank has a copy.
void attention_backward(Pass& pass, const BlockContext& context, const ops::AttentionArgs& args,
                        const AttentionGradients& d) {
  const TensorRanks* const ranks = pass.weights.tensor_ranks();
  if (ranks == nullptr) {
    return ops::attention_backward(pass.backend, args, d.context, d.lse, d.d_context, d.d_q, d.d_k,
                                   d.d_v);
  }
  const int64_t heads = num_heads_of_ranks(context);
  attention_backward_of_copies(pass, *ranks, {.num_heads = heads, .group = {0, heads}}, args, d);
}

// From d_context to d_q_raw and d_kv_a, with the gradients of kv_b_proj.
void attend_backward(Pass& pass, const BlockContext& context, const MlaSaved& s,
                     TensorView d_context, TensorView d_q_raw, TensorView d_kv_a) {
  const Scratch::Mark mark(pass.backend.scratch());
  const MlaConfig& mla = context.as<MlaConfig>();
  const int64_t tokens = pass.num_tokens();
  const HeadLowRank h = allocate_head_low_rank(pass, context);
  const TensorView d_latent = pass.take(pass.dtype(), s.latent_context.shape);
  // context = expanded(latent_context)
  expand_context_backward(pass, context, s.latent_context, d_context, h, d_latent);
  const TensorView q = make_latent_queries(pass, context, s.q_raw);
  const TensorView rows = make_cache_rows(pass, context, s.kv_a);
  const TensorView d_q = pass.take(pass.dtype(), q.shape);
  const TensorView d_keys = pass.take(DType::kF32, {tokens, 1, mla.cache_width()});
  const TensorView d_values = pass.take(DType::kF32, {tokens, 1, mla.kv_lora_rank});
  // latent_context = attention(q, rows)
  attention_backward(pass, context, prepare_attention(pass, context, q, rows),
                     {.context = s.latent_context,
                      .lse = s.lse,
                      .d_context = d_latent,
                      .d_q = d_q,
                      .d_k = d_keys,
                      .d_v = d_values});
  // q = [absorbed(q_raw's nope part) | rotated(q_raw's rope part)]
  absorb_queries_backward(pass, context, s.q_raw, d_q, h, d_q_raw);
  ops::head_norm_rope_backward(
      pass.backend,
      rope_args(pass, context, cols_of_all_heads(s.q_raw, mla.nope_dim, s.q_raw.cols())),
      cols_of_all_heads(d_q, mla.kv_lora_rank, d_q.cols()),
      cols_of_all_heads(d_q_raw, mla.nope_dim, d_q_raw.cols()), {});
  add_kv_b_gradients(pass, context, s.q_raw, d_q, s.latent_context, d_context, h);
  ops::copy(pass.backend, cache_rows_backward(pass, context, s.kv_a, d_keys, d_values), d_kv_a);
}

struct Mla {
  using Config = MlaConfig;
  using Saved = MlaSaved;
  static constexpr BlockGroup kGroup = BlockGroup::kAttention;

  static std::string find_config_fault(const Config& c) {
    return rope_dim_fault("qk_rope_head_dim", c.rope_dim);
  }

  static std::string describe(const Config& c) {
    return fmt::format("{} heads of {} over a latent of {}", c.num_heads, c.head_dim(),
                       c.kv_lora_rank);
  }

  static void add_params(const Config& c, int64_t d, ParamRows& rows);

  // Each rank has all of the latent, for its heads.
  static Config divide(const Config& c, const TensorShare& share) {
    Config own = c;
    own.num_heads = Deal{.size = c.num_heads}.part_of(share).count;
    return own;
  }
  static CacheSpec cache_spec(const Config& c, DType dtype) {
    return {.entry_bytes = c.cache_width() * dtype_bytes(dtype)};
  }

  // Heads as the model defines them, expanded; and in latent space, as they are computed.
  static BlockWork work(const Config& c) {
    const auto heads = static_cast<double>(c.num_heads);
    return {
        .pair_flops = 2.0 * heads * static_cast<double>(c.head_dim() + c.value_dim),
        .executed_pair_flops = 2.0 * heads * static_cast<double>(2 * c.kv_lora_rank + c.rope_dim),
        .pair_exponentials = heads};
  }

  static double output_flops(const Pass& pass, const BlockContext& context) {
    return linear_flops(pass, context, kMlaO);
  }

  static void allocate_always_kept(Pass&, const BlockContext&, Saved&) {}

  static void allocate_saved(Pass& pass, const BlockContext& context, Saved& s) {
    const auto& c = context.as<Config>();
    const int64_t tokens = pass.num_tokens();
    const DType dtype = pass.dtype();
    const auto flops = [&](MlaKey key) { return linear_flops(pass, context, key); };
    const double expand = 2.0 * static_cast<double>(tokens * c.num_heads) *
                          static_cast<double>(c.kv_lora_rank * c.value_dim);
    if (c.q_lora_rank > 0) {
      s.q_a = pass.allocate_saved("query_wa_proj", flops(kMlaQA), dtype, {tokens, c.q_lora_rank});
    }
    s.q_raw = pass.allocate_saved("query_proj", flops(kMlaQ) + flops(kMlaQB), dtype,
                                  {tokens, c.num_heads, c.head_dim()});
    s.kv_a = pass.allocate_saved("kv_wa_proj", flops(kMlaKvA), dtype, {tokens, c.cache_width()});
    s.latent_context = pass.allocate_saved("context", executed_attention_flops(pass, work(c)),
                                           dtype, {tokens, c.num_heads, c.kv_lora_rank});
    s.context =
        pass.allocate_saved("attention_out", expand, dtype, {tokens, c.num_heads, c.value_dim});
    s.lse = pass.allocate_saved("context", 0.0, DType::kF32, {tokens, c.num_heads});
    for (const MlaKey key : {kMlaQ, kMlaQA, kMlaQB, kMlaKvA, kMlaO}) {
      s.lora_h[key] = allocate_lora_h(pass, context, key);
    }
  }

  static void forward(Pass& pass, const BlockContext& context, Saved& s, TensorView n,
                      BlockOutput output) {
    const Scratch::Mark mark(pass.backend.scratch());
    queries_forward(pass, context, n, s);
    linear_forward(pass, context, kMlaKvA, n, {}, s.lora_h[kMlaKvA], s.kv_a);
    if (!pass.is_computed(s.latent_context)) {
      const TensorView q = make_latent_queries(pass, context, s.q_raw);
      const TensorView rows = make_cache_rows(pass, context, s.kv_a);
      ops::attention(pass.backend, prepare_attention(pass, context, q, rows), s.latent_context,
                     s.lse);
    }
    if (!pass.is_computed(s.context)) expand_context(pass, context, s.latent_context, s.context);
    linear_forward(pass, context, kMlaO, flat(s.context), output.add, s.lora_h[kMlaO], output.out);
  }

  static void backward(Pass& pass, const BlockContext& context, const Saved& s, TensorView n,
                       TensorView d_out, TensorView d_n) {
    CHECK(!pass.cached());
    const Scratch::Mark mark(pass.backend.scratch());
    const TensorView d_q_raw = pass.take(pass.dtype(), s.q_raw.shape);
    const TensorView d_kv_a = pass.take(pass.dtype(), s.kv_a.shape);
    {
      const Scratch::Mark inner(pass.backend.scratch());
      const TensorView d_context = pass.take(pass.dtype(), s.context.shape);
      // out = o_proj(context)
      linear_backward(pass, context, kMlaO, flat(s.context), s.lora_h[kMlaO], d_out,
                      flat(d_context), false);
      attend_backward(pass, context, s, d_context, d_q_raw, d_kv_a);
    }
    queries_backward(pass, context, n, s, d_q_raw, d_n);
    linear_backward(pass, context, kMlaKvA, n, s.lora_h[kMlaKvA], d_kv_a, d_n, /*accumulate=*/true);
  }
};

// kv_b_proj is read head by head, keys and values apart.
void Mla::add_params(const Config& c, int64_t d, ParamRows& rows) {
  constexpr int kFirstOrder = 10;  // q_a, q_b, kv_a, kv_b; q and o are where other attentions' are
  constexpr int kQOrder = 0;
  constexpr int kOOrder = 3;
  const auto add = [&](MlaKey key, std::string_view suffix, std::string_view path, int order,
                       Shape shape, const RowShards& shards, int bias = kNoKey,
                       RowBlocks blocks = {}) {
    rows.push_back({.key = key,
                    .suffix = suffix,
                    .shape = shape,
                    .blocks = blocks,
                    .shards = shards,
                    .bias = c.bias ? bias : kNoKey,
                    .lora = {.path = path, .order = order}});
  };
  const auto add_bias = [&](MlaKey key, std::string_view suffix, int64_t width) {
    if (c.bias) rows.push_back({.key = key, .suffix = suffix, .shape = {width}});
  };
  const auto add_norm = [&](MlaKey key, std::string_view suffix, int64_t width) {
    rows.push_back({.key = key, .suffix = suffix, .shape = {width}, .init = 1.0f});
  };
  // A rank makes both latents whole, for its heads.
  const RowShards heads = outputs_by(c.num_heads, "heads");
  if (c.q_lora_rank == 0) {
    add(kMlaQ, "self_attn.q_proj.weight", "self_attn.q_proj", kQOrder, {c.q_width(), d}, heads);
  } else {
    add(kMlaQA, "self_attn.q_a_proj.weight", "self_attn.q_a_proj", kFirstOrder, {c.q_lora_rank, d},
        {}, kMlaQABias);
    add_bias(kMlaQABias, "self_attn.q_a_proj.bias", c.q_lora_rank);
    add_norm(kMlaQANorm, "self_attn.q_a_layernorm.weight", c.q_lora_rank);
    add(kMlaQB, "self_attn.q_b_proj.weight", "self_attn.q_b_proj", kFirstOrder + 1,
        {c.q_width(), c.q_lora_rank}, heads);
  }
  add(kMlaKvA, "self_attn.kv_a_proj_with_mqa.weight", "self_attn.kv_a_proj_with_mqa",
      kFirstOrder + 2, {c.cache_width(), d}, {}, kMlaKvABias);
  add_bias(kMlaKvABias, "self_attn.kv_a_proj_with_mqa.bias", c.cache_width());
  add_norm(kMlaKvANorm, "self_attn.kv_a_layernorm.weight", c.kv_lora_rank);
  add(kMlaKvB, "self_attn.kv_b_proj.weight", "self_attn.kv_b_proj", kFirstOrder + 3,
      {c.num_heads * c.head_rows(), c.kv_lora_rank}, heads, kNoKey, {c.nope_dim, c.value_dim});
  add(kMlaO, "self_attn.o_proj.weight", "self_attn.o_proj", kOOrder, {d, c.num_heads * c.value_dim},
      gathered(heads), kMlaOBias);
  add_bias(kMlaOBias, "self_attn.o_proj.bias", d);
}

}  // namespace

const BlockOps kMla = block_ops<Mla>("mla");

}  // namespace strata::model
