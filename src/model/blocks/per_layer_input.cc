// SPDX-License-Identifier: Apache-2.0
// T tokens, D model width, P width of the layer's own input.
#include "model/blocks/per_layer_input.h"

#include <fmt/format.h>

#include <array>

#include "model/linear.h"
#include "ops/elementwise.h"

namespace strata::model {
namespace {

struct PerLayerInput {
  using Config = PerLayerInputConfig;
  static constexpr BlockGroup kGroup = BlockGroup::kMlp;
  enum Key : uint8_t { kGate, kProjection };

  struct Saved {
    TensorView gate;  // [T, P] per_layer_input_gate
    std::array<TensorView, 2> lora_h;
  };

  static std::string find_config_fault(const Config&) { return {}; }
  static std::string describe(const Config& c) { return fmt::format("input {}", c.width); }

  static void add_params(const Config& c, int64_t d, ParamRows& rows) {
    constexpr int kFirstOrder = 100;  // behind every MLP's projections
    rows.push_back({.key = kGate,
                    .suffix = "per_layer_input_gate.weight",
                    .shape = {c.width, d},
                    .shards = uneven_outputs_by(c.width, "channels"),
                    .lora = {.path = "per_layer_input_gate", .order = kFirstOrder + kGate}});
    rows.push_back({.key = kProjection,
                    .suffix = "per_layer_projection.weight",
                    .shape = {d, c.width},
                    .shards = gathered(uneven_outputs_by(c.width, "channels")),
                    .lora = {.path = "per_layer_projection", .order = kFirstOrder + kProjection}});
  }

  static CacheSpec cache_spec(const Config&, DType) { return {}; }
  static BlockWork work(const Config&) { return {}; }
  static double output_flops(const Pass& pass, const BlockContext& context) {
    return linear_flops(pass, context, kProjection);
  }
  static void allocate_always_kept(Pass&, const BlockContext&, Saved&) {}
  static void allocate_saved(Pass& pass, const BlockContext& context, Saved& s) {
    s.gate = pass.allocate_saved("per_layer_input_gate", linear_flops(pass, context, kGate),
                                 pass.dtype(), {pass.num_tokens(), context.as<Config>().width});
    s.lora_h = {allocate_lora_h(pass, context, kGate), allocate_lora_h(pass, context, kProjection)};
  }

  // The layer's columns of what all layers have.
  static TensorView columns_of(const BlockContext& context, TensorView of_all_layers) {
    const int64_t width = context.as<Config>().width;
    return of_all_layers.slice_cols(context.layer * width, (context.layer + 1) * width);
  }

  // act(gate) * e, from the scratch.
  static TensorView gated_input(Pass& pass, const BlockContext& context, const Saved& s) {
    const TensorView y = pass.take(pass.dtype(), s.gate.shape);
    ops::act_and_mul(pass.backend, context.as<Config>().activation, s.gate,
                     columns_of(context, pass.lists.shared.per_layer_inputs), y);
    return y;
  }

  static void forward(Pass& pass, const BlockContext& context, Saved& s, TensorView n,
                      BlockOutput output) {
    const Scratch::Mark mark(pass.backend.scratch());
    linear_forward(pass, context, kGate, n, {}, s.lora_h[kGate], s.gate);
    linear_forward(pass, context, kProjection, gated_input(pass, context, s), output.add,
                   s.lora_h[kProjection], output.out);
  }

  static void backward(Pass& pass, const BlockContext& context, const Saved& s, TensorView n,
                       TensorView d_out, TensorView d_n) {
    const Scratch::Mark mark(pass.backend.scratch());
    const SharedValues& shared = pass.lists.shared;
    const TensorView d_gated = pass.take(pass.dtype(), s.gate.shape);
    linear_backward(pass, context, kProjection, gated_input(pass, context, s),
                    s.lora_h[kProjection], d_out, d_gated, false);
    const TensorView d_gate = pass.take(pass.dtype(), s.gate.shape);
    const TensorView d_input = pass.take(pass.dtype(), s.gate.shape);
    ops::act_and_mul_backward(pass.backend, context.as<Config>().activation, s.gate,
                              columns_of(context, shared.per_layer_inputs), d_gated, d_gate,
                              d_input);
    if (!shared.d_per_layer_inputs.empty()) {
      ops::copy(pass.backend, d_input, columns_of(context, shared.d_per_layer_inputs));
    }
    linear_backward(pass, context, kGate, n, s.lora_h[kGate], d_gate, d_n, false);
  }
};

}  // namespace

const BlockOps kPerLayerInput = block_ops<PerLayerInput>("per_layer_input");

}  // namespace strata::model
