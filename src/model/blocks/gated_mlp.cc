// SPDX-License-Identifier: Apache-2.0
#include "model/blocks/gated_mlp.h"

#include <fmt/format.h>

#include "model/linear.h"
#include "model/tensor_ranks.h"
#include "ops/elementwise.h"
#include "ops/gated.h"

namespace strata::model {
namespace {

struct GatedMlp {
  using Config = GatedMlpConfig;
  using Saved = GatedMlpSaved;
  static constexpr BlockGroup kGroup = BlockGroup::kMlp;
  enum Key : uint8_t { kGate, kUp, kDown, kGateBias, kUpBias, kDownBias, kGateUp };

  static GatedMlpParts parts(const BlockContext& context) {
    const auto& c = context.as<Config>();
    return {.gate = kGate, .up = kUp, .down = kDown, .width = c.width, .activation = c.activation};
  }

  static std::string find_config_fault(const Config&) { return {}; }
  static std::string describe(const Config& c) { return fmt::format("MLP {}", c.width); }

  static void add_params(const Config& c, int64_t d, ParamRows& rows) {
    constexpr int kFirstOrder = 4;  // behind the attention's projections
    const auto add = [&](Key key, Key bias, std::string_view suffix, std::string_view path,
                         Shape shape, const RowShards& shards) {
      rows.push_back({.key = key,
                      .suffix = suffix,
                      .shape = shape,
                      .shards = shards,
                      .bias = c.bias ? static_cast<int>(bias) : kNoKey,
                      .lora = {.path = path, .order = kFirstOrder + key}});
    };
    const RowShards outputs = uneven_outputs_by(c.width, "channels");
    add(kGate, kGateBias, "mlp.gate_proj.weight", "mlp.gate_proj", {c.width, d}, outputs);
    add(kUp, kUpBias, "mlp.up_proj.weight", "mlp.up_proj", {c.width, d}, outputs);
    add(kDown, kDownBias, "mlp.down_proj.weight", "mlp.down_proj", {d, c.width}, gathered(outputs));
    if (c.fused_gate_up) fuse_gate_up(c, d, rows);
    if (!c.bias) return;
    const auto add_bias = [&](Key key, std::string_view suffix, int64_t width) {
      rows.push_back({.key = key, .suffix = suffix, .shape = {width}});
    };
    add_bias(kGateBias, "mlp.gate_proj.bias", c.width);
    add_bias(kUpBias, "mlp.up_proj.bias", c.width);
    add_bias(kDownBias, "mlp.down_proj.bias", d);
  }

  static Config divide(const Config& c, const TensorShare& share) {
    Config own = c;
    own.width = Deal{.size = c.width}.part_of(share).count;
    return own;
  }

  // In files gate and up are rows of one matrix, and adapters have one module for it.
  static void fuse_gate_up(const Config& c, int64_t d, ParamRows& rows) {
    for (ParamRow& row : rows) {
      if (row.key > kUp) continue;
      const int64_t first_row = row.key == kUp ? c.width : 0;
      row.others.push_back({"mlp.gate_up_proj.weight", {2 * c.width, d}, first_row});
      row.lora.is_part = true;
    }
    const int order = rows.front().lora.order;
    rows.push_back({.key = kGateUp,
                    .lora = {.path = "mlp.gate_up_proj",
                             .order = order,
                             .in = d,
                             .out = 2 * c.width,
                             .parts = {kGate, kUp, kNoKey}}});
  }

  static CacheSpec cache_spec(const Config&, DType) { return {}; }
  static BlockWork work(const Config&) { return {}; }
  static double output_flops(const Pass& pass, const BlockContext& context) {
    return linear_flops(pass, context, kDown);
  }
  static void allocate_always_kept(Pass&, const BlockContext&, Saved&) {}
  static void allocate_saved(Pass& pass, const BlockContext& context, Saved& saved) {
    gated_mlp_allocate_saved(pass, context, parts(context), saved);
  }
  static void forward(Pass& pass, const BlockContext& context, Saved& saved, TensorView n,
                      BlockOutput output) {
    gated_mlp_forward(pass, context, parts(context), saved, n, output);
  }
  static void backward(Pass& pass, const BlockContext& context, const Saved& saved, TensorView n,
                       TensorView d_out, TensorView d_n) {
    gated_mlp_backward(pass, context, parts(context), saved, n, d_out, d_n);
  }
};

}  // namespace

const BlockOps kGatedMlp = block_ops<GatedMlp>("gated_mlp");

void gated_mlp_allocate_saved(Pass& pass, const BlockContext& context, const GatedMlpParts& mlp,
                              GatedMlpSaved& saved) {
  const Shape shape = {pass.num_tokens(), mlp.width};
  saved.gate =
      pass.allocate_saved("mlpwi_0", linear_flops(pass, context, mlp.gate), pass.dtype(), shape);
  saved.up =
      pass.allocate_saved("mlpwi_1", linear_flops(pass, context, mlp.up), pass.dtype(), shape);
  saved.lora_h = {allocate_lora_h(pass, context, mlp.gate), allocate_lora_h(pass, context, mlp.up),
                  allocate_lora_h(pass, context, mlp.down)};
}

void gated_mlp_activate(Pass& pass, const GatedMlpParts& mlp, TensorView gate, TensorView up,
                        TensorView scales, TensorView y) {
  if (mlp.clamp.limit > 0.0f) {
    ops::clamped_swiglu(pass.backend, mlp.clamp, gate, up, scales, y);
  } else if (scales.empty()) {
    ops::act_and_mul(pass.backend, mlp.activation, gate, up, y);
  } else {
    ops::scaled_act_and_mul(pass.backend, mlp.activation, gate, up, scales, y);
  }
}

namespace {

void activate_backward(Pass& pass, const GatedMlpParts& mlp, TensorView gate, TensorView up,
                       TensorView scales, TensorView d_y, TensorView d_gate, TensorView d_up,
                       TensorView d_scales) {
  if (mlp.clamp.limit > 0.0f) {
    ops::clamped_swiglu_backward(pass.backend, mlp.clamp, gate, up, scales, d_y, d_gate, d_up,
                                 d_scales);
  } else if (scales.empty()) {
    ops::act_and_mul_backward(pass.backend, mlp.activation, gate, up, d_y, d_gate, d_up);
  } else {
    ops::scaled_act_and_mul_backward(pass.backend, mlp.activation, gate, up, scales, d_y, d_gate,
                                     d_up, d_scales);
  }
}

// Each row's d_scale is one sum over the channels of all ranks, so each makes all of it.
void tensor_parallel_activate_backward(Pass& pass, const TensorRanks& ranks,
                                       const GatedMlpParts& mlp, int64_t width, TensorView gate,
                                       TensorView up, TensorView scales, TensorView d_y,
                                       TensorView d_gate, TensorView d_up, TensorView d_scales) {
  const Scratch::Mark mark(pass.backend.scratch());
  const Deal channels = {.size = width};
  const AxisPart own = channels.part_of(ranks.share());
  const auto whole_of = [&](TensorView values) {
    return ranks.gather_whole(pass, values, channels);
  };
  const TensorView whole_d_gate = pass.take(d_gate.dtype, {gate.rows(), width});
  const TensorView whole_d_up = pass.take(d_up.dtype, {gate.rows(), width});
  activate_backward(pass, mlp, whole_of(gate), whole_of(up), scales, whole_of(d_y), whole_d_gate,
                    whole_d_up, d_scales);
  ops::copy(pass.backend, whole_d_gate.slice_cols(own.first, own.end()), d_gate);
  ops::copy(pass.backend, whole_d_up.slice_cols(own.first, own.end()), d_up);
}

}  // namespace

void gated_mlp_activate_backward(Pass& pass, const GatedMlpParts& mlp, int64_t width,
                                 TensorView gate, TensorView up, TensorView scales, TensorView d_y,
                                 TensorView d_gate, TensorView d_up, TensorView d_scales) {
  const TensorRanks* const ranks = pass.weights.tensor_ranks();
  if (ranks == nullptr || scales.empty())
    return activate_backward(pass, mlp, gate, up, scales, d_y, d_gate, d_up, d_scales);
  tensor_parallel_activate_backward(pass, *ranks, mlp, width, gate, up, scales, d_y, d_gate, d_up,
                                    d_scales);
}

namespace {

// act(gate) * up, and each row's scale; in scratch.
TensorView compute_activated_rows(Pass& pass, const GatedMlpParts& mlp, const GatedMlpSaved& saved,
                                  TensorView scales) {
  const TensorView y = pass.take(pass.dtype(), saved.gate.shape);
  gated_mlp_activate(pass, mlp, saved.gate, saved.up, scales, y);
  return y;
}

}  // namespace

void gated_mlp_forward(Pass& pass, const BlockContext& context, const GatedMlpParts& mlp,
                       const GatedMlpSaved& saved, TensorView n, BlockOutput output,
                       TensorView scales) {
  const Scratch::Mark mark(pass.backend.scratch());
  linear_forward(pass, context, mlp.gate, n, {}, saved.lora_h[0], saved.gate);
  linear_forward(pass, context, mlp.up, n, {}, saved.lora_h[1], saved.up);
  const TensorView activated = compute_activated_rows(pass, mlp, saved, scales);
  linear_forward(pass, context, mlp.down, activated, output.add, saved.lora_h[2], output.out);
}

void gated_mlp_backward(Pass& pass, const BlockContext& context, const GatedMlpParts& mlp,
                        const GatedMlpSaved& saved, TensorView n, TensorView d_out, TensorView d_n,
                        TensorView scales, TensorView d_scales) {
  Scratch& scratch = pass.backend.scratch();
  const Scratch::Mark mark(scratch);
  const TensorView d_gate = pass.take(pass.dtype(), saved.gate.shape);
  const TensorView d_up = pass.take(pass.dtype(), saved.gate.shape);
  {
    const Scratch::Mark inner(scratch);
    const TensorView activated = compute_activated_rows(pass, mlp, saved, scales);
    const TensorView d_activated = pass.take(pass.dtype(), saved.gate.shape);
    // out = add + down(activated)
    linear_backward(pass, context, mlp.down, activated, saved.lora_h[2], d_out, d_activated, false);
    // activated = act(gate) * up
    gated_mlp_activate_backward(pass, mlp, context.param(mlp.down).panel.cols, saved.gate, saved.up,
                                scales, d_activated, d_gate, d_up, d_scales);
  }
  linear_backward(pass, context, mlp.gate, n, saved.lora_h[0], d_gate, d_n, false);
  linear_backward(pass, context, mlp.up, n, saved.lora_h[1], d_up, d_n, true);
}

}  // namespace strata::model
