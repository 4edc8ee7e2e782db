// SPDX-License-Identifier: Apache-2.0
// T tokens, D model width, N heads, H head width, Q width of the queries' latent, G groups of
// heads, W channels of a compressor's projections, C of its entries, E entries of the pass, K
// entries that a query sees.
#include "model/blocks/compressed/compressed_attention.h"

#include <fmt/format.h>

#include <array>
#include <span>

#include "model/blocks/attention_config.h"
#include "model/blocks/compressed/key_compressor.h"
#include "model/blocks/grouped_linear.h"
#include "model/linear.h"
#include "model/residual.h"
#include "ops/compressor.h"

namespace strata::model {
namespace {

using Config = CompressedAttentionConfig;
using Key = CompressedAttentionKey;

struct CompressedAttentionSaved {
  TensorView q_a;            // [T, Q] query_wa_proj, before its norm
  TensorView q_raw;          // [T, N, H] query_proj, before its norm
  TensorView kv;             // [T, H] kv_proj, before norm and rotation
  TensorView compress_kv;    // [T, W] f32 compressor_proj
  TensorView compress_gate;  // [T, W] f32
  TensorView listed;         // [T, K] of 4-byte numbers: selected()
  TensorView context;        // [T, N, H]
  TensorView lse;            // [T, N] f32
  TensorView grouped;        // [T, G O] attention_out
  std::array<TensorView, kCompressedNumLinears> lora_h;

  // Entries that each query sees, [T * K].
  [[nodiscard]] IndexView<int32_t> selected() const {
    static_assert(sizeof(int32_t) == sizeof(float));
    if (listed.empty()) return {};
    return {listed.data, listed.shape.num_elements()};
  }
};

ops::TailRopeArgs inverse_rope_args(const Pass& pass, const BlockContext& context, TensorView x) {
  ops::TailRopeArgs args = rope_args(pass, context, x, /*norm=*/false);
  args.inverse = true;
  return args;
}

ops::TailRopeArgs query_rope_args(const Pass& pass, const BlockContext& context,
                                  const CompressedAttentionSaved& s) {
  return rope_args(pass, context, s.q_raw, /*norm=*/true);
}

ops::TailRopeArgs key_rope_args(const Pass& pass, const BlockContext& context,
                                const CompressedAttentionSaved& s) {
  return rope_args(pass, context, as_head(s.kv), /*norm=*/true, context.values(kCompressedKvNorm));
}

TensorView apply_rope(Pass& pass, const ops::TailRopeArgs& args) {
  const TensorView y = pass.take(pass.dtype(), args.x.shape);
  ops::tail_rope(pass.backend, args, y);
  return y;
}

ops::RmsNormArgs latent_norm(const BlockContext& context, TensorView q_a) {
  return norm_args(q_a, context.values(kCompressedQANorm), context.as<Config>().eps, 0.0f);
}

TensorView norm_query_latent(Pass& pass, const BlockContext& context, TensorView q_a) {
  const TensorView y = pass.take(pass.dtype(), {q_a.rows(), q_a.cols()});
  ops::rms_norm(pass.backend, latent_norm(context, q_a), y, {});
  return y;
}

ops::SparseAttentionArgs make_attention_args(Pass& pass, const BlockContext& context,
                                             const CompressedAttentionSaved& s, TensorView q,
                                             TensorView keys, const EntryStore& entries) {
  const auto& c = context.as<Config>();
  return {.q = q,
          .sinks = context.values(kCompressedSinks),
          .segments = make_sparse_segments(pass, context, keys, c.window, entries),
          .scale = plain_attention_scale(c.head_dim),
          .window = c.window,
          .ratio = c.ratio,
          .selected = s.selected(),
          .top_k = c.top_k};
}

GroupedLinear output_groups(const Config& c) {
  return {.key = kCompressedOA, .num_groups = c.num_groups};
}

struct CompressedAttention {
  using Config = CompressedAttentionConfig;
  using Saved = CompressedAttentionSaved;
  static constexpr BlockGroup kGroup = BlockGroup::kAttention;

  static std::string find_config_fault(const Config& c);
  static std::string describe(const Config& c) {
    if (c.ratio == 0) {
      return fmt::format("{} heads of {}, window {}", c.num_heads, c.head_dim, c.window);
    }
    const std::string seen = c.index_heads > 0 ? fmt::format("{} of the", c.top_k) : "all";
    return fmt::format("{} heads of {}, window {}, {} entries of {} tokens", c.num_heads,
                       c.head_dim, c.window, seen, c.ratio);
  }
  static void add_params(const Config& c, int64_t d, ParamRows& rows);

  static CacheSpec cache_spec(const Config& c, DType dtype) {
    const int64_t entry = c.ratio == 0 ? 0 : (c.head_dim + c.index_dim) * dtype_bytes(dtype);
    return {.entry_bytes = entry,
            .ratio = std::max<int64_t>(1, c.ratio),
            .sequence_bytes = key_state_bytes(c, dtype),
            .rings = key_rings(c, dtype)};
  }

  // Keys of the window; entries, or of these no more than the indexer lists, and its scores of all.
  static BlockWork work(const Config& c) {
    const double key = 4.0 * static_cast<double>(c.width());
    const auto heads = static_cast<double>(c.num_heads);
    BlockWork work;
    work.windows[0] = {.pair_flops = key, .pair_exponentials = heads, .window = c.window};
    if (c.ratio == 0) return work;
    const auto ratio = static_cast<double>(c.ratio);
    double every = key, exponentials = heads;
    if (c.index_heads > 0) {
      work.windows[1] = {.pair_flops = key / ratio,
                         .pair_exponentials = heads / ratio,
                         .window = c.top_k * c.ratio};
      exponentials = 0.0;  // an indexer has none
      every = 2.0 * static_cast<double>(c.index_heads * (c.index_dim + 1));
    }
    work.pair_flops = work.executed_pair_flops = every / ratio;
    work.pair_exponentials = exponentials / ratio;
    return work;
  }
  static double output_flops(const Pass& pass, const BlockContext& context) {
    return linear_flops(pass, context, kCompressedOB);
  }

  static void allocate_always_kept(Pass&, const BlockContext&, Saved&) {}

  static double indexer_flops(const Pass& pass, const BlockContext& context) {
    double flops = 0.0;
    for (const Key key : {kIndexerQ, kIndexerKv, kIndexerGate, kIndexerWeights})
      flops += linear_flops(pass, context, key);
    return flops;
  }
  // Each group's own columns alone, whose rows are padded in the panel.
  static double grouped_output_flops(const Config& c, int64_t tokens) {
    return 2.0 * static_cast<double>(tokens * c.o_lora_rank) *
           static_cast<double>(c.num_heads * c.head_dim);
  }

  static void allocate_saved(Pass& pass, const BlockContext& context, Saved& s) {
    const auto& c = context.as<Config>();
    const int64_t tokens = pass.num_tokens();
    const DType dtype = pass.dtype();
    const auto flops = [&](Key key) { return linear_flops(pass, context, key); };
    s.q_a =
        pass.allocate_saved("query_wa_proj", flops(kCompressedQA), dtype, {tokens, c.q_lora_rank});
    s.q_raw = pass.allocate_saved("query_proj", flops(kCompressedQB), dtype,
                                  {tokens, c.num_heads, c.head_dim});
    s.kv = pass.allocate_saved("kv_proj", flops(kCompressedKv), dtype, {tokens, c.head_dim});
    if (c.ratio > 0) {
      const Shape shape = {tokens, projected_width(c, c.head_dim)};
      s.compress_kv =
          pass.allocate_saved("compressor_proj", flops(kCompressorKv), DType::kF32, shape);
      s.compress_gate =
          pass.allocate_saved("compressor_proj", flops(kCompressorGate), DType::kF32, shape);
    }
    if (c.index_heads > 0) {
      s.listed = pass.allocate_saved("indexer", indexer_flops(pass, context), DType::kF32,
                                     {tokens, c.top_k});
    }
    s.context = pass.allocate_saved("context", executed_attention_flops(pass, work(c)), dtype,
                                    {tokens, c.num_heads, c.head_dim});
    s.lse = pass.allocate_saved("context", 0.0, DType::kF32, {tokens, c.num_heads});
    s.grouped = pass.allocate_saved("attention_out", grouped_output_flops(c, tokens), dtype,
                                    {tokens, c.num_groups * c.o_lora_rank});
    for (const Key key : {kCompressedQA, kCompressedQB, kCompressedKv, kCompressedOB, kCompressorKv,
                          kCompressorGate}) {
      s.lora_h[key] = allocate_lora_h(pass, context, key);
    }
  }

  // Empty without a compressor.
  struct Entries {
    TensorView raw;  // [E, C] f32, before their norm
    EntryStore store;
  };
  static Entries compress_entries(Pass& pass, const BlockContext& context, const Saved& s) {
    const auto& c = context.as<Config>();
    if (c.ratio == 0) return {};
    const KeyCompressor part = main_compressor(c, pass.dtype());
    const TensorView raw =
        compress_raw_entries(pass, context, part, s.compress_kv, s.compress_gate);
    return {.raw = raw, .store = make_entries(pass, context, part, raw)};
  }

  static void forward(Pass& pass, const BlockContext& context, Saved& s, TensorView n,
                      BlockOutput output) {
    const Scratch::Mark mark(pass.backend.scratch());
    const auto& c = context.as<Config>();
    linear_forward(pass, context, kCompressedQA, n, {}, s.lora_h[kCompressedQA], s.q_a);
    const TensorView latent = norm_query_latent(pass, context, s.q_a);
    linear_forward(pass, context, kCompressedQB, latent, {}, s.lora_h[kCompressedQB],
                   flat(s.q_raw));
    linear_forward(pass, context, kCompressedKv, n, {}, s.lora_h[kCompressedKv], s.kv);
    if (c.ratio > 0) {
      linear_forward(pass, context, kCompressorKv, n, {}, s.lora_h[kCompressorKv], s.compress_kv);
      linear_forward(pass, context, kCompressorGate, n, {}, s.lora_h[kCompressorGate],
                     s.compress_gate);
    }
    if (c.index_heads > 0 && !pass.is_computed(s.listed)) {
      run_indexer(pass, context, n, latent, s.selected());
    }
    if (!pass.is_computed(s.context)) compute_context(pass, context, s);
    if (!pass.is_computed(s.grouped)) {
      const TensorView back = apply_rope(pass, inverse_rope_args(pass, context, s.context));
      grouped_linear_forward(pass, context, output_groups(c), flat(back), s.grouped);
    }
    linear_forward(pass, context, kCompressedOB, s.grouped, output.add, s.lora_h[kCompressedOB],
                   output.out);
  }

  static void compute_context(Pass& pass, const BlockContext& context, const Saved& s) {
    const Scratch::Mark mark(pass.backend.scratch());
    const auto& c = context.as<Config>();
    const TensorView keys = apply_rope(pass, key_rope_args(pass, context, s));
    const TensorView key_rows = keys.reshape(s.kv.shape);
    const EntryStore entries = compress_entries(pass, context, s).store;
    const TensorView q = apply_rope(pass, query_rope_args(pass, context, s));
    ops::sparse_attention(pass.backend, make_attention_args(pass, context, s, q, key_rows, entries),
                          s.context, s.lse);
    store_keys_in_ring(pass, context, key_rows, c.window);
  }

  // From d_out to d_context.
  static void output_backward(Pass& pass, const BlockContext& context, const Saved& s,
                              TensorView d_out, TensorView d_context) {
    const Scratch::Mark mark(pass.backend.scratch());
    const TensorView d_grouped = pass.take(pass.dtype(), s.grouped.shape);
    linear_backward(pass, context, kCompressedOB, s.grouped, s.lora_h[kCompressedOB], d_out,
                    d_grouped, false);
    const ops::TailRopeArgs rotated_back_args = inverse_rope_args(pass, context, s.context);
    const TensorView back = apply_rope(pass, rotated_back_args);
    grouped_linear_backward(pass, context, output_groups(context.as<Config>()), flat(back),
                            d_grouped, flat(d_context));
    // back = context, rotated back
    ops::tail_rope_backward(pass.backend, rotated_back_args, d_context, d_context, {});
  }

  // Gradients of the raw projections, of the compute type.
  struct Gradients {
    TensorView q_raw, kv;
    TensorView compress_kv = {}, compress_gate = {};
  };

  static void attend_backward(Pass& pass, const BlockContext& context, const Saved& s,
                              TensorView d_context, const Gradients& d) {
    const Scratch::Mark mark(pass.backend.scratch());
    const auto& c = context.as<Config>();
    const TensorView q = apply_rope(pass, query_rope_args(pass, context, s));
    const TensorView keys = apply_rope(pass, key_rope_args(pass, context, s));
    const Entries entries = compress_entries(pass, context, s);
    const TensorView d_entries =
        c.ratio == 0 ? TensorView() : allocate_entries(pass, c, DType::kF32, c.head_dim);
    const TensorView d_q = pass.take(pass.dtype(), q.shape);
    const TensorView d_keys = pass.take(DType::kF32, s.kv.shape);
    // context = attention(q, keys, entries), q = rotated(q_raw), keys = rotated(norm(kv))
    ops::sparse_attention_backward(
        pass.backend,
        make_attention_args(pass, context, s, q, keys.reshape(s.kv.shape), entries.store),
        s.context, s.lse, d_context, d_q, d_keys, d_entries,
        pass.base_gradient(context.param(kCompressedSinks).index));
    ops::tail_rope_backward(pass.backend, query_rope_args(pass, context, s), d_q, d.q_raw, {});
    ops::tail_rope_backward(pass.backend, key_rope_args(pass, context, s), as_head(d_keys),
                            as_head(d.kv),
                            pass.base_gradient(context.param(kCompressedKvNorm).index));
    if (c.ratio == 0) return;
    entries_backward(pass, context, main_compressor(c, pass.dtype()),
                     {.kv = s.compress_kv, .gate = s.compress_gate, .raw = entries.raw}, d_entries,
                     d.compress_kv, d.compress_gate);
  }

  // Writes d_n [T, D] f32.
  static void queries_backward(Pass& pass, const BlockContext& context, const Saved& s,
                               TensorView n, TensorView d_q_raw, TensorView d_n) {
    const Scratch::Mark mark(pass.backend.scratch());
    const TensorView d_latent = pass.take(DType::kF32, s.q_a.shape);
    linear_backward(pass, context, kCompressedQB, norm_query_latent(pass, context, s.q_a),
                    s.lora_h[kCompressedQB], flat(d_q_raw), d_latent, false);
    // latent = norm(q_a)
    const TensorView d_q_a = zeros(pass, s.q_a.shape);
    ops::rms_norm_backward(pass.backend, latent_norm(context, s.q_a), {}, d_latent, d_q_a,
                           pass.base_gradient(context.param(kCompressedQANorm).index));
    linear_backward(pass, context, kCompressedQA, n, s.lora_h[kCompressedQA],
                    to_compute_dtype(pass, d_q_a), d_n, false);
  }

  // Attention as forward ran it, once more, for the indexer to learn from.
  static void indexer_loss_and_backward(Pass& pass, const BlockContext& context, const Saved& s,
                                        TensorView n) {
    const Scratch::Mark mark(pass.backend.scratch());
    const auto& c = context.as<Config>();
    const EntryStore entries = compress_entries(pass, context, s).store;
    const ops::ListedAttention attention = {
        .q = apply_rope(pass, query_rope_args(pass, context, s)),
        .entries = entries.rows,
        .lse = s.lse,
        .scale = plain_attention_scale(c.head_dim),
        .selected = s.selected(),
        .top_k = c.top_k};
    add_indexer_loss_and_gradients(pass, context, n, norm_query_latent(pass, context, s.q_a),
                                   attention);
  }

  static void backward(Pass& pass, const BlockContext& context, const Saved& s, TensorView n,
                       TensorView d_out, TensorView d_n) {
    CHECK(!pass.cached());
    const Scratch::Mark mark(pass.backend.scratch());
    const bool compressed = context.as<Config>().ratio > 0;
    Gradients d = {.q_raw = pass.take(pass.dtype(), s.q_raw.shape),
                   .kv = pass.take(pass.dtype(), s.kv.shape)};
    if (compressed) {
      d.compress_kv = pass.take(pass.dtype(), s.compress_kv.shape);
      d.compress_gate = pass.take(pass.dtype(), s.compress_gate.shape);
    }
    {
      const Scratch::Mark inner(pass.backend.scratch());
      const TensorView d_context = pass.take(pass.dtype(), s.context.shape);
      output_backward(pass, context, s, d_out, d_context);
      attend_backward(pass, context, s, d_context, d);
    }
    if (pass.indexer_loss != nullptr && context.as<Config>().index_heads > 0) {
      indexer_loss_and_backward(pass, context, s, n);
    }
    queries_backward(pass, context, s, n, d.q_raw, d_n);
    linear_backward(pass, context, kCompressedKv, n, s.lora_h[kCompressedKv], d.kv, d_n, true);
    if (!compressed) return;
    linear_backward(pass, context, kCompressorKv, n, s.lora_h[kCompressorKv], d.compress_kv, d_n,
                    true);
    linear_backward(pass, context, kCompressorGate, n, s.lora_h[kCompressorGate], d.compress_gate,
                    d_n, true);
  }
};

std::string CompressedAttention::find_config_fault(const Config& c) {
  constexpr int64_t kLargest = int64_t{1} << 20;
  std::string fault;
  const auto want = [&](bool fine, std::string_view name, int64_t got, std::string_view wanted) {
    if (fault.empty() && !fine) fault = fmt::format("{}: got {}, want {}", name, got, wanted);
  };
  const auto is_size = [](int64_t value) { return value >= 1 && value <= kLargest; };
  const auto is_width = [&](int64_t width) {
    return width >= c.rope_dim && width <= ops::kMaxTailWidth && (width - c.rope_dim) % 2 == 0;
  };
  want(is_size(c.num_heads), "num_attention_heads", c.num_heads, "1 to 2^20");
  want(c.rope_dim >= 2 && c.rope_dim % 2 == 0, "qk_rope_head_dim", c.rope_dim,
       "an even number from 2 on");
  want(is_width(c.head_dim), "head_dim", c.head_dim,
       "even, at least qk_rope_head_dim and at most 4096");
  want(is_size(c.q_lora_rank), "q_lora_rank", c.q_lora_rank, "1 to 2^20");
  want(is_size(c.o_lora_rank), "o_lora_rank", c.o_lora_rank, "1 to 2^20");
  want(c.num_groups >= 1 && c.num_heads % std::max<int64_t>(1, c.num_groups) == 0, "o_groups",
       c.num_groups, "a divisor of num_attention_heads");
  want(is_size(c.window), "sliding_window", c.window, "1 to 2^20");
  want(c.ratio >= 0 && c.ratio <= ops::kMaxCompressRatio, "a compress rate", c.ratio,
       fmt::format("1 to {}", ops::kMaxCompressRatio));
  if (c.index_heads == 0) return fault;
  want(is_size(c.index_heads), "index_n_heads", c.index_heads, "1 to 2^20");
  want(is_width(c.index_dim), "index_head_dim", c.index_dim,
       "even, at least qk_rope_head_dim and at most 4096");
  want(is_size(c.top_k), "index_topk", c.top_k, "1 to 2^20");
  return fault;
}

// Appends the rows of the block's parameters, of three sorts.
struct RowList {
  ParamRows& rows;

  void add_matrix(Key key, std::string_view suffix, std::string_view path, Shape shape,
                  const RowShards& shards = {}, RowBlocks blocks = {}) {
    constexpr int kFirstOrder = 24;  // behind every other block's
    rows.push_back({.key = key,
                    .suffix = suffix,
                    .shape = shape,
                    .blocks = blocks,
                    .shards = shards,
                    .lora = {.path = path, .order = kFirstOrder + key}});
  }
  // The choice has no gradient: a fresh adapter has the indexer where a loss of its own trains it.
  void add_indexer_matrix(Key key, std::string_view suffix, std::string_view path, Shape shape) {
    add_matrix(key, suffix, path, shape);
    rows.back().lora.is_fresh = false;
    rows.back().lora.of_indexer = true;
  }
  void add_norm(Key key, std::string_view suffix, int64_t width) {
    rows.push_back({.key = key, .suffix = suffix, .shape = {width}, .init = 1.0f});
  }
  void add_f32(Key key, std::string_view suffix, Shape shape, const RowShards& shards = {}) {
    rows.push_back(
        {.key = key, .suffix = suffix, .shape = shape, .shards = shards, .floor = DType::kF32});
  }
};

void add_compressor_rows(const Config& c, int64_t d, RowList& list) {
  const int64_t width = projected_width(c, c.head_dim);
  list.add_f32(kCompressorBias, "self_attn.compressor.position_bias", {c.ratio, width});
  list.add_matrix(kCompressorKv, "self_attn.compressor.kv_proj.weight",
                  "self_attn.compressor.kv_proj", {width, d});
  list.add_matrix(kCompressorGate, "self_attn.compressor.gate_proj.weight",
                  "self_attn.compressor.gate_proj", {width, d});
  list.add_norm(kCompressorNorm, "self_attn.compressor.kv_norm.weight", c.head_dim);
}

void add_indexer_rows(const Config& c, int64_t d, RowList& list) {
  const int64_t width = projected_width(c, c.index_dim);
  list.add_f32(kIndexerBias, "self_attn.compressor.indexer.position_bias", {c.ratio, width});
  list.add_indexer_matrix(kIndexerKv, "self_attn.compressor.indexer.kv_proj.weight",
                          "self_attn.compressor.indexer.kv_proj", {width, d});
  list.add_indexer_matrix(kIndexerGate, "self_attn.compressor.indexer.gate_proj.weight",
                          "self_attn.compressor.indexer.gate_proj", {width, d});
  list.add_norm(kIndexerNorm, "self_attn.compressor.indexer.kv_norm.weight", c.index_dim);
  list.add_indexer_matrix(kIndexerQ, "self_attn.compressor.indexer.q_b_proj.weight",
                          "self_attn.compressor.indexer.q_b_proj",
                          {c.index_heads * c.index_dim, c.q_lora_rank});
  list.add_indexer_matrix(kIndexerWeights,
                          "self_attn.compressor.indexer.scorer.weights_proj.weight",
                          "self_attn.compressor.indexer.scorer.weights_proj", {c.index_heads, d});
}

void CompressedAttention::add_params(const Config& c, int64_t d, ParamRows& rows) {
  RowList list{rows};
  // A rank makes the latent, the keys and the indexer's choice whole, for its heads.
  const RowShards heads = outputs_by(c.num_heads, "heads");
  const RowShards groups = outputs_by(c.num_groups, "groups of heads");
  list.add_f32(kCompressedSinks, "self_attn.sinks", {c.num_heads}, heads);
  list.add_matrix(kCompressedQA, "self_attn.q_a_proj.weight", "self_attn.q_a_proj",
                  {c.q_lora_rank, d});
  list.add_norm(kCompressedQANorm, "self_attn.q_a_norm.weight", c.q_lora_rank);
  list.add_matrix(kCompressedQB, "self_attn.q_b_proj.weight", "self_attn.q_b_proj",
                  {c.width(), c.q_lora_rank}, heads);
  list.add_matrix(kCompressedKv, "self_attn.kv_proj.weight", "self_attn.kv_proj", {c.head_dim, d});
  list.add_norm(kCompressedKvNorm, "self_attn.kv_norm.weight", c.head_dim);
  list.add_matrix(kCompressedOA, "self_attn.o_a_proj.weight", "self_attn.o_a_proj",
                  {c.num_groups * c.o_lora_rank, c.width() / c.num_groups}, groups,
                  {c.o_lora_rank, 0});
  list.add_matrix(kCompressedOB, "self_attn.o_b_proj.weight", "self_attn.o_b_proj",
                  {d, c.num_groups * c.o_lora_rank}, gathered(groups));
  if (c.ratio == 0) return;
  add_compressor_rows(c, d, list);
  if (c.index_heads > 0) add_indexer_rows(c, d, list);
}

}  // namespace

const BlockOps kCompressedAttention = block_ops<CompressedAttention>("compressed_attention");

}  // namespace strata::model
