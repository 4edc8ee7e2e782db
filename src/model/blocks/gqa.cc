// SPDX-License-Identifier: Apache-2.0
// T tokens, D model width, N query heads, M key/value heads, H head width, R rank.
#include "model/blocks/gqa.h"

#include <fmt/format.h>

#include <array>

#include "model/blocks/attention_config.h"
#include "model/blocks/gqa_rows.h"
#include "model/blocks/head_ranks.h"
#include "model/blocks/head_views.h"
#include "model/blocks/kv_segments.h"
#include "model/linear.h"
#include "model/residual.h"
#include "ops/elementwise.h"
#include "ops/gated.h"
#include "ops/rope.h"

namespace strata::model {
namespace {

struct Gqa {
  using Config = GqaConfig;
  static constexpr BlockGroup kGroup = BlockGroup::kAttention;
  using Key = GqaRows::Key;
  using enum GqaRows::Key;
  static constexpr int kNumLinears = 4;

  struct Saved {
    TensorView q_raw;    // [T, N, H] query_proj, before norm and RoPE; [T, N, 2 H] with a gate
    TensorView k_raw;    // [T, M, H] key_proj; empty where another layer's keys are read
    TensorView v;        // [T, M, H] value_proj, before its norm; empty where there is none
    TensorView context;  // [T, N, H]
    TensorView lse;      // [T, N] f32
    std::array<TensorView, kNumLinears> lora_h;
  };

  static std::string find_config_fault(const Config& c) {
    if (c.num_kv_heads < 1) return "num_key_value_heads must be at least 1";
    if (c.num_heads % c.num_kv_heads != 0) {
      return fmt::format("num_attention_heads {} is not a multiple of num_key_value_heads {}",
                         c.num_heads, c.num_kv_heads);
    }
    if (c.rotary_dim > c.head_dim) {
      return fmt::format("{} rotary columns are more than head_dim {}", c.rotary_dim, c.head_dim);
    }
    if (c.rotary_dim > 0) return rope_dim_fault("the rotary part of head_dim", c.rotary_dim);
    return rope_dim_fault("head_dim", c.head_dim,
                          " (hidden_size / num_attention_heads unless given)");
  }

  static std::string describe(const Config& c) {
    return fmt::format(
        "{} heads and {} for keys of {}{}", c.num_heads, c.num_kv_heads, c.head_dim,
        c.window == 0 ? ""
                      : fmt::format(", {} {}", c.in_chunks ? "chunks of" : "window", c.window));
  }

  static void add_params(const Config& c, int64_t d, ParamRows& rows) { GqaRows::add(c, d, rows); }

  // Where layers share keys and values each rank has all of them.
  static bool divides(const Config& c) { return !c.gives_kv && !c.kv_layer; }
  static Config divide(const Config& c, const TensorShare& share) {
    Config own = c;
    own.num_heads = Deal{.size = c.num_heads}.part_of(share).count;
    own.num_kv_heads = Deal{.size = c.num_kv_heads, .copied = true}.part_of(share).count;
    return own;
  }

  static CacheSpec cache_spec(const Config& c, DType dtype) {
    if (c.kv_layer) return {};
    return {.entry_bytes = 2 * c.kv_width() * dtype_bytes(dtype), .window = c.window};
  }

  // Scores and values of all heads; a cap's tanh has an exponential too.
  static BlockWork work(const Config& c) {
    const double flops = 2.0 * static_cast<double>(2 * c.q_width());
    const int64_t exponentials = c.score_cap > 0.0f ? 2 * c.num_heads : c.num_heads;
    return {.pair_flops = flops,
            .executed_pair_flops = flops,
            .pair_exponentials = static_cast<double>(exponentials),
            .window = c.window,
            .in_chunks = c.in_chunks};
  }

  static double output_flops(const Pass& pass, const BlockContext& context) {
    return linear_flops(pass, context, kO);
  }

  static void allocate_always_kept(Pass&, const BlockContext&, Saved&) {}

  static void allocate_saved(Pass& pass, const BlockContext& context, Saved& s) {
    const auto& c = context.as<Config>();
    const int64_t tokens = pass.num_tokens();
    const Shape queries = {tokens, c.num_heads, c.head_dim};
    const Shape keys = {tokens, c.num_kv_heads, c.head_dim};
    s.q_raw = pass.allocate_saved("query_proj", linear_flops(pass, context, kQ), pass.dtype(),
                                  {tokens, c.num_heads, c.q_proj_width() / c.num_heads});
    if (c.has_k_proj()) {
      s.k_raw =
          pass.allocate_saved("key_proj", linear_flops(pass, context, kK), pass.dtype(), keys);
    }
    if (c.has_v_proj()) {
      s.v = pass.allocate_saved("value_proj", linear_flops(pass, context, kV), pass.dtype(), keys);
    }
    s.context = pass.allocate_saved("context", executed_attention_flops(pass, work(c)),
                                    pass.dtype(), queries);
    s.lse = pass.allocate_saved("context", 0.0, DType::kF32, {tokens, c.num_heads});
    for (int key = 0; key < kNumLinears; ++key) {
      s.lora_h[static_cast<size_t>(key)] = allocate_lora_h(pass, context, key);
    }
  }

  // The table of q or k; kNoRope: none.
  static int rope_of(const Config& c, Key norm) {
    return norm == kQNorm ? c.query_rope.value_or(c.rope) : c.rope;
  }

  static ops::HeadNormRopeArgs rope_args(const Pass& pass, const BlockContext& context,
                                         TensorView x, Key norm) {
    const auto& c = context.as<Config>();
    const RopeTable& rope = pass.ropes[rope_of(c, norm)];
    return {.x = x,
            .weight = norms_apart(c) ? TensorView() : context.values(norm),
            .eps = static_cast<float>(c.eps),
            .weight_offset = c.norm_offset,
            .positions = pass.positions,
            .cos = rope.cos(),
            .sin = rope.sin(),
            .interleaved = c.rope_interleave,
            .rotary_dim = c.rotary_dim};
  }

  static TensorView queries_of(const BlockContext& context, TensorView q_raw) {
    return cols_of_all_heads(q_raw, 0, context.as<Config>().head_dim);
  }
  static TensorView gates_of(const BlockContext& context, TensorView q_raw) {
    const int64_t dim = context.as<Config>().head_dim;
    return cols_of_all_heads(q_raw, dim, 2 * dim);
  }
  // What o_proj reads: the context, in scratch when a gate is on it.
  static TensorView gated_context(Pass& pass, const BlockContext& context, const Saved& s) {
    if (!context.as<Config>().output_gate) return s.context;
    const TensorView y = pass.take(pass.dtype(), s.context.shape);
    ops::act_and_mul(pass.backend, ops::Activation::kSigmoid, gates_of(context, s.q_raw), s.context,
                     y);
    return y;
  }

  // q or k after norm and RoPE, in `y` or, where it is empty, the scratch; without either the
  // projection itself.
  static TensorView norm_and_rope(Pass& pass, const BlockContext& context, TensorView raw, Key norm,
                                  TensorView y = {}) {
    const auto& c = context.as<Config>();
    if (rope_of(c, norm) == kNoRope) {
      CHECK(!c.qk_norm && !c.plain_qk_norm && !c.output_gate && y.empty());  // no family has them
      return raw;
    }
    if (y.empty()) y = pass.take(pass.dtype(), raw.shape);
    if (norms_apart(c)) {
      norm_heads(pass, context, raw, norm, y);
      raw = y;
    }
    ops::head_norm_rope(pass.backend, rope_args(pass, context, raw, norm), y);
    return y;
  }

  // q or k after a norm that is not part of RoPE. One over all heads is computed whole on each
  // tensor rank.
  static void norm_heads(Pass& pass, const BlockContext& context, TensorView raw, Key norm,
                         TensorView y) {
    const TensorRanks* const ranks = ranks_of(pass, context);
    if (ranks == nullptr || !context.as<Config>().norms_span_heads) {
      const ops::RmsNormArgs args = norm_apart(context, raw, norm);
      return ops::rms_norm(pass.backend, args, y.reshape(args.x.shape), {});
    }
    norm_over_heads_of_ranks(
        pass, *ranks, columns_of(pass, context, norm), raw,
        [&](TensorView whole) { return norm_apart(context, as_head(whole), norm); }, y);
  }
  // The ranks that divide this block; else null.
  static const TensorRanks* ranks_of(const Pass& pass, const BlockContext& context) {
    return divides(context.as<Config>()) ? pass.weights.tensor_ranks() : nullptr;
  }
  // What tensor ranks have of q or k.
  static Deal columns_of(const Pass& pass, const BlockContext& context, Key norm) {
    const ParamView& projection = context.param(norm == kQNorm ? kQ : kK);
    return pass.weights.table()[projection.index].row->output_deal();
  }

  // How many heads of queries or keys tensor ranks have.
  static Deal heads_of(const Pass& pass, const BlockContext& context, Key norm) {
    const Deal columns = columns_of(pass, context, norm);
    return {.size = columns.num_units(), .copied = columns.copied};
  }

  // What values are made of, [T, M, H].
  static TensorView raw_values(const BlockContext& context, const Saved& s) {
    return context.as<Config>().keys_are_values ? s.k_raw : s.v;
  }
  static ops::RmsNormArgs value_norm(const BlockContext& context, TensorView raw) {
    return norm_args(raw, {}, context.as<Config>().eps, 0.0f);
  }
  // The values where they are not normed, else normed into `y` or, where it is empty, the scratch.
  static TensorView values_of(Pass& pass, const BlockContext& context, const Saved& s,
                              TensorView y = {}) {
    const TensorView raw = raw_values(context, s);
    if (!context.as<Config>().v_norm) {
      CHECK(y.empty());  // no family gives others such values
      return raw;
    }
    if (y.empty()) y = pass.take(pass.dtype(), raw.shape);
    ops::rms_norm(pass.backend, value_norm(context, raw), y, {});
    return y;
  }

  // What attention reads besides the queries, [T, M, H] each.
  struct KeysValues {
    TensorView k, v;
  };
  static KeysValues keys_and_values(Pass& pass, const BlockContext& context, const Saved& s) {
    const auto& c = context.as<Config>();
    const SharedKv shared = c.kv_layer || c.gives_kv ? shared_kv(pass, context) : SharedKv();
    if (c.kv_layer) return {shared.k, shared.v};
    return {norm_and_rope(pass, context, s.k_raw, kKNorm, shared.k),
            values_of(pass, context, s, shared.v)};
  }
  // The keys and values that this layer gives to others, or that it reads of another.
  static const SharedKv& shared_kv(const Pass& pass, const BlockContext& context) {
    return pass.lists.shared.kv_of(context.as<Config>().kv_layer.value_or(context.layer));
  }

  // Whether q and k are normed by an op of their own, and not as they are turned.
  static bool norms_apart(const Config& c) { return c.norms_span_heads || c.plain_qk_norm; }
  // The arguments of a norm of q or k: over all heads of a token, or of each head.
  static ops::RmsNormArgs norm_apart(const BlockContext& context, TensorView raw, Key norm) {
    const auto& c = context.as<Config>();
    if (c.plain_qk_norm) return norm_args(raw, {}, c.eps, 0.0f);
    return norm_args(flat(raw), context.values(norm), c.eps, c.norm_offset);
  }

  // Stores its own keys and values; those of another layer that layer has stored.
  static std::span<const ops::AttentionSegment> prepare_segments(Pass& pass,
                                                                 const BlockContext& context,
                                                                 const KeysValues& kv) {
    const auto& c = context.as<Config>();
    if (!c.kv_layer) return prepare_kv_segments(pass, context, kv.k, kv.v);
    BlockContext of_layer = context;
    of_layer.layer = *c.kv_layer;
    return make_segments_of_stored_kv(pass, of_layer, kv.k, kv.v);
  }

  // Those of a tensor rank's heads, of which it has that of all.
  static TensorView own_sinks(const Pass& pass, const BlockContext& context) {
    const TensorView sinks = context.values(kSinks);
    const TensorRanks* const ranks = ranks_of(pass, context);
    if (sinks.empty() || ranks == nullptr) return sinks;
    const AxisPart own = Deal{.size = sinks.shape[0]}.part_of(ranks->share());
    return sinks.part(own.first, {own.count});
  }

  static ops::AttentionArgs prepare_attention(Pass& pass, const BlockContext& context, TensorView q,
                                              const KeysValues& kv) {
    const auto& c = context.as<Config>();
    return {.q = q,
            .segments = prepare_segments(pass, context, kv),
            .num_kv_heads = c.num_kv_heads,
            .scale = c.scale,
            .window = c.window,
            .in_chunks = c.in_chunks,
            .sinks = own_sinks(pass, context),
            .score_cap = c.score_cap};
  }

  static void forward(Pass& pass, const BlockContext& context, Saved& s, TensorView n,
                      BlockOutput output) {
    const Scratch::Mark mark(pass.backend.scratch());
    linear_forward(pass, context, kQ, n, {}, s.lora_h[kQ], flat(s.q_raw));
    const auto& c = context.as<Config>();
    if (c.has_k_proj()) linear_forward(pass, context, kK, n, {}, s.lora_h[kK], flat(s.k_raw));
    if (c.has_v_proj()) {
      linear_forward(pass, context, kV, n, {}, s.lora_h[kV], flat(s.v));
    }
    if (!pass.is_computed(s.context)) {
      const TensorView q = norm_and_rope(pass, context, queries_of(context, s.q_raw), kQNorm);
      const KeysValues kv = keys_and_values(pass, context, s);
      ops::attention(pass.backend, prepare_attention(pass, context, q, kv), s.context, s.lse);
    }
    linear_forward(pass, context, kO, flat(gated_context(pass, context, s)), output.add,
                   s.lora_h[kO], output.out);
  }

  // out = o_proj(context * sigmoid(gate)): writes d_context, and the gates' columns of d_q.
  static void output_backward(Pass& pass, const BlockContext& context, const Saved& s,
                              TensorView d_out, TensorView d_context, TensorView d_q) {
    const Scratch::Mark mark(pass.backend.scratch());
    const TensorView gated = gated_context(pass, context, s);
    linear_backward(pass, context, kO, flat(gated), s.lora_h[kO], d_out, flat(d_context), false);
    if (!context.as<Config>().output_gate) return;
    ops::act_and_mul_backward(pass.backend, ops::Activation::kSigmoid, gates_of(context, s.q_raw),
                              s.context, d_context, gates_of(context, d_q), d_context);
  }

  // Gradients of the raw projections, of the compute type.
  struct Gradients {
    TensorView q, k, v;  // k, v: empty where there is no such projection
  };

  static void attention_backward(Pass& pass, const BlockContext& context,
                                 const ops::AttentionArgs& args, const AttentionGradients& d) {
    const TensorRanks* const ranks = ranks_of(pass, context);
    const TensorView d_sinks = pass.base_gradient(context.param(kSinks).index);
    if (ranks == nullptr) {
      return ops::attention_backward(pass.backend, args, d.context, d.lse, d.d_context, d.d_q,
                                     d.d_k, d.d_v, d_sinks);
    }
    const Deal keys = heads_of(pass, context, kKNorm);
    const int64_t heads = context.param(kO).panel.cols / context.as<Config>().head_dim;
    if (keys.size >= ranks->share().num_ranks) {
      return add_to_heads_of_ranks(pass, *ranks, {.size = heads}, d_sinks, [&](TensorView own) {
        ops::attention_backward(pass.backend, args, d.context, d.lse, d.d_context, d.d_q, d.d_k,
                                d.d_v, own);
      });
    }
    const int64_t group = heads / keys.size;
    attention_backward_of_copies(pass, *ranks,
                                 {.num_heads = heads,
                                  .group = {keys.part_of(ranks->share()).first * group, group},
                                  .sinks = context.values(kSinks),
                                  .d_sinks = d_sinks},
                                 args, d);
  }

  // From d_context, but for the gates' columns of d.q.
  static void attend_backward(Pass& pass, const BlockContext& context, const Saved& s,
                              TensorView d_context, const Gradients& d) {
    const auto& c = context.as<Config>();
    const TensorView queries = queries_of(context, s.q_raw);
    const TensorView q = norm_and_rope(pass, context, queries, kQNorm);
    const KeysValues kv = keys_and_values(pass, context, s);
    const TensorView d_q_rotated = pass.take(DType::kF32, q.shape);
    const TensorView d_k_rotated = pass.take(DType::kF32, kv.k.shape);
    const bool are_raw = c.has_v_proj() && !c.v_norm;
    const TensorView d_v = are_raw ? d.v : pass.take(DType::kF32, kv.v.shape);
    // context = attention(rotated(norm(q_raw)), rotated(norm(k_raw)), v)
    attention_backward(pass, context, prepare_attention(pass, context, q, kv),
                       {.context = s.context,
                        .lse = s.lse,
                        .d_context = d_context,
                        .d_q = d_q_rotated,
                        .d_k = d_k_rotated,
                        .d_v = d_v});
    norm_and_rope_backward(pass, context, queries, kQNorm, d_q_rotated, queries_of(context, d.q));
    if (c.kv_layer) {
      const SharedKv& shared = shared_kv(pass, context);
      ops::add_into(pass.backend, d_k_rotated, shared.d_k);
      return ops::add_into(pass.backend, d_v, shared.d_v);
    }
    if (c.gives_kv) {
      // What the layers that read them have added.
      const SharedKv& shared = shared_kv(pass, context);
      ops::add_into(pass.backend, shared.d_k, d_k_rotated);
      ops::add_into(pass.backend, shared.d_v, d_v);
    }
    if (!c.keys_are_values) {
      norm_and_rope_backward(pass, context, s.k_raw, kKNorm, d_k_rotated, d.k);
      if (are_raw) return;
      const TensorView sum = zeros(pass, s.v.shape);
      add_values_backward(pass, context, s.v, d_v, sum);
      return ops::copy(pass.backend, sum, d.v);
    }
    // What k_proj gave goes both ways.
    norm_and_rope_backward(pass, context, s.k_raw, kKNorm, d_k_rotated, d_k_rotated);
    add_values_backward(pass, context, s.k_raw, d_v, d_k_rotated);
    ops::copy(pass.backend, d_k_rotated, d.k);
  }

  // d_v f32 of what values_of made of `raw`; adds to d_raw f32.
  static void add_values_backward(Pass& pass, const BlockContext& context, TensorView raw,
                                  TensorView d_v, TensorView d_raw) {
    if (!context.as<Config>().v_norm) return ops::add_into(pass.backend, d_v, d_raw);
    ops::rms_norm_backward(pass.backend, value_norm(context, raw), {}, d_v, d_raw, {});
  }

  // The gradient of a norm that all heads share is a sum over the heads of all tensor ranks.
  static void add_head_norm_gradient(Pass& pass, const BlockContext& context,
                                     const TensorRanks& ranks, TensorView raw, Key norm,
                                     TensorView d_rotated, TensorView d_weight) {
    const Scratch::Mark mark(pass.backend.scratch());
    const Deal heads = heads_of(pass, context, norm);
    const TensorView whole = gather_heads_of_ranks(pass, ranks, heads, raw);
    const TensorView d_whole = gather_heads_of_ranks(pass, ranks, heads, d_rotated);
    ops::head_norm_rope_backward(pass.backend, rope_args(pass, context, whole, norm), d_whole,
                                 pass.take(DType::kF32, whole.shape), d_weight);
  }

  // d_rotated f32 of what norm_and_rope made of `raw`; writes d_raw of the compute type.
  static void norm_and_rope_backward(Pass& pass, const BlockContext& context, TensorView raw,
                                     Key norm, TensorView d_rotated, TensorView d_raw) {
    const auto& c = context.as<Config>();
    if (rope_of(c, norm) == kNoRope) {
      return ops::copy(pass.backend, flat(d_rotated), flat(d_raw));
    }
    const TensorView d_weight = pass.base_gradient(context.param(norm).index);
    const ops::HeadNormRopeArgs args = rope_args(pass, context, raw, norm);
    const TensorRanks* const ranks = ranks_of(pass, context);
    if (!norms_apart(c)) {
      if (ranks == nullptr || d_weight.empty())
        return ops::head_norm_rope_backward(pass.backend, args, d_rotated, d_raw, d_weight);
      // First, since d_raw may be d_rotated.
      add_head_norm_gradient(pass, context, *ranks, raw, norm, d_rotated, d_weight);
      return ops::head_norm_rope_backward(pass.backend, args, d_rotated, d_raw, {});
    }
    const Scratch::Mark mark(pass.backend.scratch());
    const TensorView d_normed = pass.take(DType::kF32, raw.shape);
    ops::head_norm_rope_backward(pass.backend, args, d_rotated, d_normed, {});
    if (ranks != nullptr && c.norms_span_heads) {
      return norm_over_heads_of_ranks_backward(
          pass, *ranks, columns_of(pass, context, norm), raw,
          [&](TensorView whole) { return norm_apart(context, as_head(whole), norm); }, d_normed,
          d_raw, d_weight);
    }
    const ops::RmsNormArgs of_norm = norm_apart(context, raw, norm);
    const TensorView d = zeros(pass, of_norm.x.shape);
    ops::rms_norm_backward(pass.backend, of_norm, {}, d_normed.reshape(d.shape), d, d_weight);
    ops::copy(pass.backend, d, d_raw.reshape(d.shape));
  }

  static void backward(Pass& pass, const BlockContext& context, const Saved& s, TensorView n,
                       TensorView d_out, TensorView d_n) {
    CHECK(!pass.cached());
    const Scratch::Mark mark(pass.backend.scratch());
    const auto& c = context.as<Config>();
    const auto take_if = [&](bool is_there, TensorView raw) {
      return is_there ? pass.take(pass.dtype(), raw.shape) : TensorView();
    };
    const Gradients d = {.q = pass.take(pass.dtype(), s.q_raw.shape),
                         .k = take_if(c.has_k_proj(), s.k_raw),
                         .v = take_if(c.has_v_proj(), s.v)};
    {
      const Scratch::Mark inner(pass.backend.scratch());
      const TensorView d_context = pass.take(pass.dtype(), s.context.shape);
      output_backward(pass, context, s, d_out, d_context, d.q);
      attend_backward(pass, context, s, d_context, d);
    }
    linear_backward(pass, context, kQ, n, s.lora_h[kQ], flat(d.q), d_n, false);
    if (c.has_k_proj()) linear_backward(pass, context, kK, n, s.lora_h[kK], flat(d.k), d_n, true);
    if (c.has_v_proj()) linear_backward(pass, context, kV, n, s.lora_h[kV], flat(d.v), d_n, true);
  }
};

}  // namespace

const BlockOps kGqa = block_ops<Gqa>("gqa");

}  // namespace strata::model
