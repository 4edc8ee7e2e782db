// SPDX-License-Identifier: Apache-2.0
// T tokens, D model width, C width of queries, keys and values together, N value heads of width V.
#include "model/blocks/gated_delta_net.h"

#include <fmt/format.h>

#include <array>

#include "model/blocks/state_segments.h"
#include "model/linear.h"
#include "ops/causal_conv.h"
#include "ops/delta_gates.h"
#include "ops/elementwise.h"
#include "ops/gated_norm.h"

namespace strata::model {
namespace {

struct ReplayLists {
  std::vector<ops::StateSegment> segments;
};

// What a sequence's log has: what changes in its state, as it was before the rows, and their
// inputs.
struct DeltaLog {
  char* state = nullptr;
  char* before = nullptr;
  TensorView qkv = {}, b = {}, a = {};  // [rows, C], [rows, N] twice
};

struct GatedDeltaNet {
  using Config = GatedDeltaNetConfig;
  static constexpr BlockGroup kGroup = BlockGroup::kAttention;
  enum Key : uint8_t { kQkv, kZ, kB, kA, kOut, kConv, kDtBias, kALog, kNorm, kQkvz, kBa };
  static constexpr int kNumLinears = 5;

  struct Saved {
    TensorView qkv;      // [T, C] delta_qkv_proj, before the convolution
    TensorView z;        // [T, N V] delta_z_proj
    TensorView b, a;     // [T, N] delta_gates
    TensorView context;  // [T, N, V] delta_context, before the norm
    std::array<TensorView, kNumLinears> lora_h;
  };

  static std::string find_config_fault(const Config& c) {
    constexpr int64_t kLargest = int64_t{1} << 20;
    std::string fault;
    const auto want = [&](bool fine, std::string_view name, int64_t got, std::string_view wanted) {
      if (fault.empty() && !fine) fault = fmt::format("{}: got {}, want {}", name, got, wanted);
    };
    const auto is_size = [](int64_t value) { return value >= 1 && value <= kLargest; };
    want(is_size(c.num_key_heads), "linear_num_key_heads", c.num_key_heads, "1 to 2^20");
    want(is_size(c.num_value_heads), "linear_num_value_heads", c.num_value_heads, "1 to 2^20");
    want(c.num_value_heads % std::max<int64_t>(1, c.num_key_heads) == 0, "linear_num_value_heads",
         c.num_value_heads, fmt::format("a multiple of linear_num_key_heads, {}", c.num_key_heads));
    const auto is_width = [](int64_t value) { return value >= 1 && value <= 1024; };
    want(is_width(c.key_dim), "linear_key_head_dim", c.key_dim, "1 to 1024");
    want(is_width(c.value_dim), "linear_value_head_dim", c.value_dim, "1 to 1024");
    want(c.conv_width >= 1 && c.conv_width <= ops::kMaxConvTaps, "linear_conv_kernel_dim",
         c.conv_width, fmt::format("1 to {}", ops::kMaxConvTaps));
    return fault;
  }

  static std::string describe(const Config& c) {
    return fmt::format("delta net of {} heads and {} for keys, {} x {}", c.num_value_heads,
                       c.num_key_heads, c.key_dim, c.value_dim);
  }

  static constexpr int kFirstOrder = 18;  // of modules: behind the experts'

  static void add_params(const Config& c, int64_t d, ParamRows& rows) {
    const auto add = [&](Key key, std::string_view suffix, std::string_view path, Shape shape,
                         const RowShards& shards) {
      rows.push_back({.key = key,
                      .suffix = suffix,
                      .shape = shape,
                      .shards = shards,
                      .lora = {.path = path, .order = kFirstOrder + key}});
    };
    const int64_t width = c.shape().width();
    // A key head has its value heads with it: num_value_heads / num_key_heads, next to each other.
    // A rank has so many heads' rows each of queries, keys and values together.
    const RowShards key_heads = outputs_by(c.num_key_heads, "key heads");
    const RowShards value_heads = outputs_by(c.num_value_heads, "value heads");
    rows.push_back({.key = kDtBias,
                    .suffix = "linear_attn.dt_bias",
                    .shape = {c.num_value_heads},
                    .shards = value_heads,
                    .init = 1.0f});
    // Checkpoints of bf16 have these two in f32.
    rows.push_back({.key = kALog,
                    .suffix = "linear_attn.A_log",
                    .shape = {c.num_value_heads},
                    .shards = value_heads,
                    .floor = DType::kF32,
                    .draw = ParamDraw::kLogUniform16});
    rows.push_back({.key = kConv,
                    .suffix = "linear_attn.conv1d.weight",
                    .shape = {width, 1, c.conv_width},
                    .shards = key_heads,
                    .draw = ParamDraw::kNormal});
    rows.push_back({.key = kNorm,
                    .suffix = "linear_attn.norm.weight",
                    .shape = {c.value_dim},
                    .floor = DType::kF32,
                    .init = 1.0f});
    add(kQkv, "linear_attn.in_proj_qkv.weight", "linear_attn.in_proj_qkv", {width, d}, key_heads);
    add(kZ, "linear_attn.in_proj_z.weight", "linear_attn.in_proj_z", {c.value_width(), d},
        value_heads);
    add(kB, "linear_attn.in_proj_b.weight", "linear_attn.in_proj_b", {c.num_value_heads, d},
        value_heads);
    add(kA, "linear_attn.in_proj_a.weight", "linear_attn.in_proj_a", {c.num_value_heads, d},
        value_heads);
    add(kOut, "linear_attn.out_proj.weight", "linear_attn.out_proj", {d, c.value_width()},
        gathered(value_heads));
    if (c.fused_by_key_head) fuse_by_key_head(c, d, rows);
  }

  // A matrix of a file, of whose rows each key head has `step`.
  static void spell_as_part(ParamRow& row, std::string_view suffix, int64_t step, int64_t d,
                            std::vector<RowRuns> runs) {
    const int64_t heads = runs.front().count;
    row.others.push_back(
        {.suffix = suffix, .stored = {heads * step, d}, .runs = std::move(runs), .is_usual = true});
    row.lora.is_part = true;
  }

  // Key head by key head a matrix has q, k, v and z, and another one b and a; adapters have one
  // module for each of the two. Source: HF modeling_qwen3_next.py, fix_query_key_value_ordering.
  static void fuse_by_key_head(const Config& c, int64_t d, ParamRows& rows) {
    const int64_t heads = c.num_key_heads;
    const int64_t gates = c.num_value_heads / heads;               // of a key head: its value heads
    const int64_t keys = c.key_dim, values = gates * c.value_dim;  // rows of q or k, of v or z
    const int64_t step = 2 * keys + 2 * values;
    const auto runs = [&](int64_t first, int64_t count, int64_t of_step) {
      return RowRuns{.first_row = first, .rows = count, .step = of_step, .count = heads};
    };
    constexpr std::string_view kQkvzName = "linear_attn.in_proj_qkvz.weight";
    constexpr std::string_view kBaName = "linear_attn.in_proj_ba.weight";
    for (ParamRow& row : rows) {
      if (row.key == kQkv) {
        spell_as_part(row, kQkvzName, step, d,
                      {runs(0, keys, step), runs(keys, keys, step), runs(2 * keys, values, step)});
      } else if (row.key == kZ) {
        spell_as_part(row, kQkvzName, step, d, {runs(2 * keys + values, values, step)});
      } else if (row.key == kB || row.key == kA) {
        spell_as_part(row, kBaName, 2 * gates, d,
                      {runs(row.key == kB ? 0 : gates, gates, 2 * gates)});
      }
    }
    rows.push_back({.key = kQkvz,
                    .lora = {.path = "linear_attn.in_proj_qkvz",
                             .order = kFirstOrder + kQkv,
                             .in = d,
                             .out = heads * step,
                             .parts = {kQkv, kZ, kNoKey}}});
    rows.push_back({.key = kBa,
                    .lora = {.path = "linear_attn.in_proj_ba",
                             .order = kFirstOrder + kB,
                             .in = d,
                             .out = heads * 2 * gates,
                             .parts = {kB, kA, kNoKey}}});
  }

  static int64_t history_bytes(const Config& c, DType dtype) {
    return Arena::aligned((c.conv_width - 1) * c.shape().width() * dtype_bytes(dtype));
  }
  // What a row changes of what rows before it left, but for the one that ends a chunk: the history,
  // and the decays, which are behind it.
  static int64_t before_bytes(const Config& c, DType dtype) {
    return history_bytes(c, dtype) + ops::delta_decay_bytes(c.shape());
  }
  static CacheSpec cache_spec(const Config& c, DType dtype) {
    return {
        .sequence_bytes = history_bytes(c, dtype) + ops::delta_state_bytes(c.shape()),
        .replay = {.before_bytes = before_bytes(c, dtype),
                   .row_bytes = (c.shape().width() + 2 * c.num_value_heads) * dtype_bytes(dtype),
                   .chunk = ops::kDeltaChunk}};
  }

  static BlockWork work(const Config& c) {
    constexpr int64_t kMany = 1 << 14;
    return {.token_flops = ops::delta_net_flops(c.shape(), kMany) / kMany,
            .token_backward_flops = ops::delta_net_backward_flops(c.shape(), kMany) / kMany};
  }
  static double output_flops(const Pass& pass, const BlockContext& context) {
    return linear_flops(pass, context, kOut);
  }

  static void allocate_always_kept(Pass&, const BlockContext&, Saved&) {}

  static void allocate_saved(Pass& pass, const BlockContext& context, Saved& s) {
    const auto& c = context.as<Config>();
    const int64_t tokens = pass.num_tokens();
    const auto projected = [&](Key key, ScratchTag tag, int64_t width) {
      return pass.allocate_saved(tag, linear_flops(pass, context, key), pass.dtype(),
                                 {tokens, width});
    };
    s.qkv = projected(kQkv, "delta_qkv_proj", c.shape().width());
    s.z = projected(kZ, "delta_z_proj", c.value_width());
    s.b = projected(kB, "delta_gates", c.num_value_heads);
    s.a = projected(kA, "delta_gates", c.num_value_heads);
    s.context =
        pass.allocate_saved("delta_context", static_cast<double>(tokens) * work(c).token_flops,
                            pass.dtype(), {tokens, c.num_value_heads, c.value_dim});
    for (int key = 0; key < kNumLinears; ++key) {
      s.lora_h[static_cast<size_t>(key)] = allocate_lora_h(pass, context, key);
    }
  }

  static ops::CausalConvArgs make_conv_args(Pass& pass, const BlockContext& context,
                                            const Saved& s) {
    const auto& c = context.as<Config>();
    return {.x = s.qkv,
            .weight = context.values(kConv).reshape({c.shape().width(), c.conv_width}),
            .segments = make_state_segments(pass, context, 0)};
  }
  static ops::DeltaGatesArgs gates_args(const BlockContext& context, const Saved& s) {
    return {.a = s.a, .b = s.b, .a_log = context.values(kALog), .dt_bias = context.values(kDtBias)};
  }
  static ops::GatedNormArgs norm_args(const BlockContext& context, const Saved& s) {
    return {.x = s.context,
            .z = s.z,
            .weight = context.values(kNorm),
            .eps = static_cast<float>(context.as<Config>().eps)};
  }

  // What the rule reads, in scratch: the convolved rows and the gates.
  static ops::DeltaNetArgs compute_rule_args(Pass& pass, const BlockContext& context,
                                             const Saved& s) {
    const auto& c = context.as<Config>();
    const ops::DeltaNetArgs args = {.shape = c.shape(),
                                    .qkv = pass.take(pass.dtype(), s.qkv.shape),
                                    .log_decay = pass.take(DType::kF32, s.a.shape),
                                    .beta = pass.take(DType::kF32, s.a.shape),
                                    .segments = {}};
    ops::causal_conv(pass.backend, make_conv_args(pass, context, s), args.qkv);
    ops::delta_gates(pass.backend, gates_args(context, s), args.log_decay, args.beta);
    return args;
  }

  // The sequence's log, of as many rows as it has in the pass.
  static DeltaLog log_of(const Pass& pass, const BlockContext& context,
                         const PassSequence& sequence) {
    const auto& c = context.as<Config>();
    const CachePlace place = pass.cache.place(context.layer, context.sublayer);
    const int64_t rows = sequence.end - sequence.begin, space = pass.cache.log_rows();
    CHECK(rows <= space, rows, space);
    auto* state = static_cast<char*>(sequence.kept.state);
    char* next = state + place.log_offset + before_bytes(c, pass.dtype());
    const auto take = [&](int64_t width) {
      const TensorView view(next, pass.dtype(), {rows, width});
      next += space * width * dtype_bytes(pass.dtype());
      return view;
    };
    DeltaLog log = {.state = state + place.state_offset, .before = state + place.log_offset};
    log.qkv = take(c.shape().width());
    log.b = take(c.num_value_heads);
    log.a = take(c.num_value_heads);
    return log;
  }
  // Logs the rows of sequences that read drafts, before their state changes.
  static void log_rows(Pass& pass, const BlockContext& context, const Saved& s) {
    for (const PassSequence& sequence : pass.sequences) {
      if (!sequence.kept.reads_drafts) continue;
      const DeltaLog log = log_of(pass, context, sequence);
      ops::copy_bytes(pass.backend, log.state, log.before,
                      before_bytes(context.as<Config>(), pass.dtype()));
      ops::copy(pass.backend, s.qkv.slice_rows(sequence.begin, sequence.end), log.qkv);
      ops::copy(pass.backend, s.b.slice_rows(sequence.begin, sequence.end), log.b);
      ops::copy(pass.backend, s.a.slice_rows(sequence.begin, sequence.end), log.a);
    }
  }
  // The state as it was before the rows, which go to `s`.
  static void restore_rows(Pass& pass, const BlockContext& context, const Saved& s) {
    for (const PassSequence& sequence : pass.sequences) {
      const DeltaLog log = log_of(pass, context, sequence);
      ops::copy_bytes(pass.backend, log.before, log.state,
                      before_bytes(context.as<Config>(), pass.dtype()));
      ops::copy(pass.backend, log.qkv, s.qkv.slice_rows(sequence.begin, sequence.end));
      ops::copy(pass.backend, log.b, s.b.slice_rows(sequence.begin, sequence.end));
      ops::copy(pass.backend, log.a, s.a.slice_rows(sequence.begin, sequence.end));
    }
  }
  // A first row that ended its chunk did so once and for all: no draft did, and the rule reads no
  // decays of the chunk before.
  static std::span<const ops::StateSegment> make_replayed_segments(Pass& pass,
                                                                   const BlockContext& context) {
    const auto all =
        make_state_segments(pass, context, history_bytes(context.as<Config>(), pass.dtype()));
    auto& segments = pass.lists.blocks.ensure_lists<ReplayLists>().segments;
    segments.assign(all.begin(), all.end());
    for (ops::StateSegment& segment : segments) {
      if ((segment.first_position + 1) % ops::kDeltaChunk != 0) continue;
      ++segment.begin;
      ++segment.first_position;
    }
    return segments;
  }
  static void replay(Pass& pass, const BlockContext& context) {
    const Scratch::Mark mark(pass.backend.scratch());
    const auto& c = context.as<Config>();
    const int64_t tokens = pass.num_tokens();
    const Saved s = {.qkv = pass.take(pass.dtype(), {tokens, c.shape().width()}),
                     .z = {},
                     .b = pass.take(pass.dtype(), {tokens, c.num_value_heads}),
                     .a = pass.take(pass.dtype(), {tokens, c.num_value_heads}),
                     .context = {},
                     .lora_h = {}};
    pass.unless_counting([&] { restore_rows(pass, context, s); });
    ops::DeltaNetArgs rule = compute_rule_args(pass, context, s);
    rule.segments = make_replayed_segments(pass, context);
    ops::delta_net(pass.backend, rule,
                   pass.take(pass.dtype(), {tokens, c.num_value_heads, c.value_dim}));
  }

  static void forward(Pass& pass, const BlockContext& context, Saved& s, TensorView n,
                      BlockOutput output) {
    const Scratch::Mark mark(pass.backend.scratch());
    linear_forward(pass, context, kQkv, n, {}, s.lora_h[kQkv], s.qkv);
    linear_forward(pass, context, kZ, n, {}, s.lora_h[kZ], s.z);
    linear_forward(pass, context, kB, n, {}, s.lora_h[kB], s.b);
    linear_forward(pass, context, kA, n, {}, s.lora_h[kA], s.a);
    pass.unless_counting([&] { log_rows(pass, context, s); });
    if (!pass.is_computed(s.context)) {
      const Scratch::Mark inner(pass.backend.scratch());
      ops::DeltaNetArgs rule = compute_rule_args(pass, context, s);
      rule.segments =
          make_state_segments(pass, context, history_bytes(context.as<Config>(), pass.dtype()));
      ops::delta_net(pass.backend, rule, s.context);
    }
    const TensorView normed = pass.take(pass.dtype(), s.z.shape);
    ops::gated_norm(pass.backend, norm_args(context, s), normed);
    linear_forward(pass, context, kOut, normed, output.add, s.lora_h[kOut], output.out);
  }

  // out = out_proj(norm(context) * silu(z)): writes d_context and d_z.
  static void output_backward(Pass& pass, const BlockContext& context, const Saved& s,
                              TensorView d_out, TensorView d_context, TensorView d_z) {
    const Scratch::Mark mark(pass.backend.scratch());
    const TensorView normed = pass.take(pass.dtype(), s.z.shape);
    ops::gated_norm(pass.backend, norm_args(context, s), normed);
    const TensorView d_normed = pass.take(pass.dtype(), s.z.shape);
    linear_backward(pass, context, kOut, normed, s.lora_h[kOut], d_out, d_normed, false);
    ops::gated_norm_backward(pass.backend, norm_args(context, s), d_normed, d_context, d_z,
                             pass.base_gradient(context.param(kNorm).index));
  }

  // context = rule(convolved qkv, gates of a and b): writes d_qkv, d_a and d_b.
  static void rule_backward(Pass& pass, const BlockContext& context, const Saved& s,
                            TensorView d_context, TensorView d_qkv, TensorView d_a,
                            TensorView d_b) {
    const Scratch::Mark mark(pass.backend.scratch());
    ops::DeltaNetArgs rule = compute_rule_args(pass, context, s);
    rule.segments = make_state_segments(pass, context, 0);
    const TensorView d_log_decay = pass.take(DType::kF32, s.a.shape);
    const TensorView d_beta = pass.take(DType::kF32, s.a.shape);
    ops::delta_net_backward(pass.backend, rule, d_context, d_qkv, d_log_decay, d_beta);
    ops::delta_gates_backward(pass.backend, gates_args(context, s), d_log_decay, d_beta, d_a, d_b,
                              pass.base_gradient(context.param(kALog).index),
                              pass.base_gradient(context.param(kDtBias).index));
    TensorView d_conv = pass.base_gradient(context.param(kConv).index);
    if (!d_conv.empty()) d_conv = d_conv.reshape({d_conv.shape[0], d_conv.shape[2]});
    ops::causal_conv_backward(pass.backend, make_conv_args(pass, context, s), d_qkv, d_qkv, d_conv);
  }

  static void backward(Pass& pass, const BlockContext& context, const Saved& s, TensorView n,
                       TensorView d_out, TensorView d_n) {
    CHECK(!pass.cached());
    const Scratch::Mark mark(pass.backend.scratch());
    const TensorView d_qkv = pass.take(pass.dtype(), s.qkv.shape);
    const TensorView d_z = pass.take(pass.dtype(), s.z.shape);
    const TensorView d_b = pass.take(pass.dtype(), s.b.shape);
    const TensorView d_a = pass.take(pass.dtype(), s.a.shape);
    {
      const Scratch::Mark inner(pass.backend.scratch());
      const TensorView d_context = pass.take(pass.dtype(), s.context.shape);
      output_backward(pass, context, s, d_out, d_context, d_z);
      rule_backward(pass, context, s, d_context, d_qkv, d_a, d_b);
    }
    linear_backward(pass, context, kQkv, n, s.lora_h[kQkv], d_qkv, d_n, false);
    linear_backward(pass, context, kZ, n, s.lora_h[kZ], d_z, d_n, true);
    linear_backward(pass, context, kB, n, s.lora_h[kB], d_b, d_n, true);
    linear_backward(pass, context, kA, n, s.lora_h[kA], d_a, d_n, true);
  }
};

}  // namespace

const BlockOps kGatedDeltaNet = block_ops<GatedDeltaNet>("gated_delta_net");

}  // namespace strata::model
