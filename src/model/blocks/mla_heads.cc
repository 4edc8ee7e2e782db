// SPDX-License-Identifier: Apache-2.0
#include "model/blocks/mla_heads.h"

#include "model/blocks/head_views.h"
#include "model/blocks/mla.h"
#include "model/linear.h"
#include "model/tensor_ranks.h"

namespace strata::model {
namespace {

enum class Side : uint8_t { kKeys, kValues };

// kv_b_proj of a layer, and what its heads look like.
struct Heads {
  PanelView weight;
  RowBlocks blocks;
  int64_t num_heads;
  int64_t latent;

  explicit Heads(const BlockContext& context)
      : weight(context.param(kMlaKvB).panel),
        blocks({context.as<MlaConfig>().nope_dim, context.as<MlaConfig>().value_dim}),
        num_heads(context.as<MlaConfig>().num_heads),
        latent(context.as<MlaConfig>().kv_lora_rank) {}
  // The head's rows of kv_b, or of an adapter's B for it.
  [[nodiscard]] PanelView rows(const PanelView& panel, int64_t head, Side side) const {
    return blocks.block(panel, head, /*is_second=*/side == Side::kValues);
  }
  // The same of a gradient, whose rows are not padded.
  [[nodiscard]] TensorView gradient_rows(TensorView gradient, int64_t head, Side side) const {
    const int64_t keys = head * (blocks.first + blocks.second);
    const int64_t values = keys + blocks.first;
    return side == Side::kKeys ? gradient.slice_rows(keys, values)
                               : gradient.slice_rows(values, values + blocks.second);
  }
};

// [T N, width]: one row a token and head.
TensorView flat_rows(TensorView heads) {
  TensorView flat = heads;
  flat.shape = {heads.rows(), heads.cols()};
  return flat;
}

TensorView allocate_low_rank(Pass& pass, const BlockContext& context) {
  const int64_t rank = largest_rank(pass.rows, context.layer, context.param(kMlaKvB).target);
  if (rank == 0) return {};
  const int64_t num_heads = context.as<MlaConfig>().num_heads;
  return pass.take(pass.dtype(), {pass.num_tokens(), num_heads, rank});
}

// h = scale * x A^T for every token and head. x [T, N, C], h [T, N, R].
void multiply_by_lora_a(Pass& pass, const BlockContext& context, TensorView x, TensorView h) {
  const int64_t num_heads = x.shape[1];
  std::vector<ops::SegmentProduct>& products = pass.lists.products;
  products.clear();
  for_each_module(pass, context, kMlaKvB, [&](const auto& run, const auto& module) {
    products.push_back({.begin = run.begin * num_heads,
                        .end = run.end * num_heads,
                        .w = module.a_panel,
                        .scale = module.scale});
  });
  if (!products.empty()) ops::gemm_runs(pass.backend, flat_rows(x), products, flat_rows(h));
}

// Rows of one run and the columns that the run's rank fills, of head `head`.
TensorView run_part(TensorView h, const AdapterSegment& run, const LoraModule& module,
                    int64_t head) {
  return cols_of_one_head(h, head, 0, module.spec.rank).slice_rows(run.begin, run.end);
}

// h[:, head] = scale * y B of the head's key or value rows. y [T, P or U].
void multiply_by_lora_b(Pass& pass, const BlockContext& context, const Heads& heads, Side side,
                        int64_t head, TensorView y, TensorView h) {
  for_each_module(pass, context, kMlaKvB, [&](const auto& run, const auto& module) {
    ops::gemm_dx(pass.backend,
                 {.x = y.slice_rows(run.begin, run.end),
                  .w = heads.rows(module.b_panel, head, side),
                  .scale = module.scale},
                 run_part(h, run, module, head));
  });
}

// The low-rank terms of one head: h [T, N, R] times what factor(module) is of each run's.
template <typename Factor>
std::span<const ops::LowRankSegment> make_low_rank_runs(Pass& pass, const BlockContext& context,
                                                        int64_t head, TensorView h, Factor factor) {
  std::vector<ops::LowRankSegment>& low_rank = pass.lists.low_rank;
  low_rank.clear();
  for_each_module(pass, context, kMlaKvB, [&](const auto& run, const auto& module) {
    low_rank.push_back({.begin = run.begin,
                        .end = run.end,
                        .x = cols_of_one_head(h, head, 0, module.spec.rank),
                        .w = factor(module)});
  });
  return low_rank;
}

PanelView a_of(const LoraModule& module) { return module.a_panel; }

// The head's key or value rows of a module's B.
auto b_of(const Heads& heads, int64_t head, Side side) {
  return [&heads, head, side](const LoraModule& module) {
    return heads.rows(module.b_panel, head, side);
  };
}

// d_a += per sequence: h_q^T d_q, then d_h_c^T c.
void add_a_gradient(Pass& pass, const AdapterSegment& run, const LoraModule& module,
                    const HeadLowRank& h, TensorView d_q, TensorView latent_context) {
  const int64_t num_heads = d_q.shape[1];
  const int64_t rank = module.spec.rank;
  int64_t begin = 0;
  for (const int64_t end : pass.rows.ends_of(run)) {
    const int64_t first = (run.begin + begin) * num_heads;
    const int64_t last = (run.begin + end) * num_heads;
    const int64_t ends[] = {last - first};
    const auto part = [&](TensorView x, int64_t cols) {
      return flat_rows(x).slice_rows(first, last).slice_cols(0, cols);
    };
    const int64_t latent = latent_context.cols();
    ops::gemm_dw(pass.backend, part(h.q_h, rank), part(d_q, latent), ends, module.d_a);
    ops::gemm_dw(pass.backend, part(h.d_context_h, rank), part(latent_context, latent), ends,
                 module.d_a);
    begin = end;
  }
}

// What one head's gradients are made of; rows of the whole batch.
struct HeadTerms {
  TensorView q;        // [T, P]
  TensorView d_q;      // [T, C]
  TensorView context;  // [T, C], latent
  TensorView d_context;
};

// The head's rows of kv_b.
void add_head_weight_gradients(Pass& pass, const Heads& heads, int64_t n, const HeadTerms& terms,
                               TensorView d_weight) {
  ops::gemm_dw(pass.backend, terms.q, terms.d_q, pass.rows.ends(),
               heads.gradient_rows(d_weight, n, Side::kKeys));
  ops::gemm_dw(pass.backend, terms.d_context, terms.context, pass.rows.ends(),
               heads.gradient_rows(d_weight, n, Side::kValues));
}

// And of adapters' B.
void add_head_adapter_gradients(Pass& pass, const BlockContext& context, const Heads& heads,
                                int64_t n, const HeadTerms& terms, const HeadLowRank& h) {
  for_each_module(pass, context, kMlaKvB, [&](const auto& run, const auto& module) {
    if (!pass.trains(run)) return;
    ops::gemm_dw(pass.backend, terms.q.slice_rows(run.begin, run.end),
                 run_part(h.d_q_h, run, module, n), pass.rows.ends_of(run),
                 heads.gradient_rows(module.d_b, n, Side::kKeys));
    ops::gemm_dw(pass.backend, terms.d_context.slice_rows(run.begin, run.end),
                 run_part(h.context_h, run, module, n), pass.rows.ends_of(run),
                 heads.gradient_rows(module.d_b, n, Side::kValues));
  });
}

}  // namespace

void absorb_queries(Pass& pass, const BlockContext& context, TensorView q_raw, TensorView q) {
  const Scratch::Mark mark(pass.backend.scratch());
  const Heads heads(context);
  const TensorView h = allocate_low_rank(pass, context);
  for (int64_t n = 0; n < heads.num_heads; ++n) {
    const TensorView nope = cols_of_one_head(q_raw, n, 0, heads.blocks.first);
    multiply_by_lora_b(pass, context, heads, Side::kKeys, n, nope, h);
    ops::gemm_dx(pass.backend,
                 {.x = nope,
                  .w = heads.rows(heads.weight, n, Side::kKeys),
                  .runs = make_low_rank_runs(pass, context, n, h, a_of)},
                 cols_of_one_head(q, n, 0, heads.latent));
  }
}

void expand_context(Pass& pass, const BlockContext& context, TensorView latent_context,
                    TensorView expanded) {
  const Scratch::Mark mark(pass.backend.scratch());
  const Heads heads(context);
  const TensorView h = allocate_low_rank(pass, context);
  multiply_by_lora_a(pass, context, latent_context, h);
  for (int64_t n = 0; n < heads.num_heads; ++n) {
    ops::gemm(pass.backend,
              {.x = cols_of_one_head(latent_context, n, 0, heads.latent),
               .w = heads.rows(heads.weight, n, Side::kValues),
               .runs = make_low_rank_runs(pass, context, n, h, b_of(heads, n, Side::kValues))},
              cols_of_one_head(expanded, n, 0, heads.blocks.second));
  }
}

HeadLowRank allocate_head_low_rank(Pass& pass, const BlockContext& context) {
  HeadLowRank h;
  for (TensorView* view : {&h.q_h, &h.d_q_h, &h.context_h, &h.d_context_h}) {
    *view = allocate_low_rank(pass, context);
  }
  return h;
}

void expand_context_backward(Pass& pass, const BlockContext& context, TensorView latent_context,
                             TensorView d_context, const HeadLowRank& h,
                             TensorView d_latent_context) {
  const Heads heads(context);
  multiply_by_lora_a(pass, context, latent_context, h.context_h);
  for (int64_t n = 0; n < heads.num_heads; ++n) {
    const TensorView d = cols_of_one_head(d_context, n, 0, heads.blocks.second);
    // context = c W^T + (s c A^T) B^T
    multiply_by_lora_b(pass, context, heads, Side::kValues, n, d, h.d_context_h);
    ops::gemm_dx(pass.backend,
                 {.x = d,
                  .w = heads.rows(heads.weight, n, Side::kValues),
                  .runs = make_low_rank_runs(pass, context, n, h.d_context_h, a_of)},
                 cols_of_one_head(d_latent_context, n, 0, heads.latent));
  }
}

void absorb_queries_backward(Pass& pass, const BlockContext& context, TensorView q_raw,
                             TensorView d_q, const HeadLowRank& h, TensorView d_q_raw) {
  const Heads heads(context);
  multiply_by_lora_a(pass, context, cols_of_all_heads(d_q, 0, heads.latent), h.d_q_h);
  for (int64_t n = 0; n < heads.num_heads; ++n) {
    // q = q_raw W + (s q_raw B) A
    multiply_by_lora_b(pass, context, heads, Side::kKeys, n,
                       cols_of_one_head(q_raw, n, 0, heads.blocks.first), h.q_h);
    ops::gemm(pass.backend,
              {.x = cols_of_one_head(d_q, n, 0, heads.latent),
               .w = heads.rows(heads.weight, n, Side::kKeys),
               .runs = make_low_rank_runs(pass, context, n, h.d_q_h, b_of(heads, n, Side::kKeys))},
              cols_of_one_head(d_q_raw, n, 0, heads.blocks.first));
  }
}

int64_t num_heads_of_ranks(const BlockContext& context) {
  return context.param(kMlaO).panel.cols / context.as<MlaConfig>().value_dim;
}

namespace {

bool has_adapters(const Pass& pass, const BlockContext& context) {
  return largest_rank(pass.rows, context.layer, context.param(kMlaKvB).target) > 0;
}

// [T, all heads, width] of heads [T, N, width]; in scratch.
TensorView gather_heads(const Pass& pass, const TensorRanks& ranks, int64_t num_heads,
                        TensorView heads) {
  const int64_t width = heads.cols();
  return ranks.gather_whole(pass, flat(heads), {.size = num_heads * width, .unit = width})
      .reshape({heads.shape[0], num_heads, width});
}

// What the heads' gradients are made of, [T, heads, ..] each.
struct HeadsTerms {
  TensorView q_raw, d_q, latent_context, d_context;
  [[nodiscard]] int64_t num_heads() const { return q_raw.shape[1]; }
  [[nodiscard]] HeadTerms of(const Heads& heads, int64_t n) const {
    return {.q = cols_of_one_head(q_raw, n, 0, heads.blocks.first),
            .d_q = cols_of_one_head(d_q, n, 0, heads.latent),
            .context = cols_of_one_head(latent_context, n, 0, heads.latent),
            .d_context = cols_of_one_head(d_context, n, 0, heads.blocks.second)};
  }
};

// Adds the gradient of kv_b, of which a rank has the rows of its own heads alone.
void add_weight_gradients(Pass& pass, const BlockContext& context, const HeadsTerms& terms) {
  const TensorView d_weight = pass.base_gradient(context.param(kMlaKvB).index);
  if (d_weight.empty()) return;
  const Heads heads(context);
  for (int64_t n = 0; n < terms.num_heads(); ++n)
    add_head_weight_gradients(pass, heads, n, terms.of(heads, n), d_weight);
}

// Adds the gradients of adapters, whose B has rows of all heads, from the terms of all heads.
void add_adapter_gradients(Pass& pass, const BlockContext& context, const HeadsTerms& terms,
                           const HeadLowRank& h) {
  const Heads heads(context);
  for (int64_t n = 0; n < terms.num_heads(); ++n)
    add_head_adapter_gradients(pass, context, heads, n, terms.of(heads, n), h);
  for_each_module(pass, context, kMlaKvB, [&](const auto& run, const auto& module) {
    if (pass.trains(run)) add_a_gradient(pass, run, module, h, terms.d_q, terms.latent_context);
  });
}

}  // namespace

// Adapters and their gradients are whole on every tensor rank.
void add_kv_b_gradients(Pass& pass, const BlockContext& context, TensorView q_raw, TensorView d_q,
                        TensorView latent_context, TensorView d_context, const HeadLowRank& h) {
  const HeadsTerms own = {q_raw, d_q, latent_context, d_context};
  add_weight_gradients(pass, context, own);
  if (!has_adapters(pass, context)) return;
  const TensorRanks* const ranks = pass.weights.tensor_ranks();
  if (ranks == nullptr) return add_adapter_gradients(pass, context, own, h);
  const Scratch::Mark mark(pass.backend.scratch());
  const int64_t num_heads = num_heads_of_ranks(context);
  const auto whole = [&](TensorView heads) { return gather_heads(pass, *ranks, num_heads, heads); };
  const HeadLowRank whole_h = {.q_h = whole(h.q_h),
                               .d_q_h = whole(h.d_q_h),
                               .context_h = whole(h.context_h),
                               .d_context_h = whole(h.d_context_h)};
  add_adapter_gradients(
      pass, context, {whole(q_raw), whole(d_q), whole(latent_context), whole(d_context)}, whole_h);
}

}  // namespace strata::model
