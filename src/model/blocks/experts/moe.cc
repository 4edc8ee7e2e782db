// SPDX-License-Identifier: Apache-2.0
// T tokens, D model width, E experts, K chosen experts of a token, F width of an expert, R rank.
#include "model/blocks/experts/moe.h"

#include <fmt/format.h>

#include <cmath>

#include "model/blocks/experts/expert_linear.h"
#include "model/blocks/experts/expert_rows.h"
#include "model/blocks/experts/moe_rows.h"
#include "model/blocks/experts/routing.h"
#include "model/blocks/gated_mlp.h"
#include "model/linear.h"
#include "model/residual.h"
#include "ops/elementwise.h"
#include "ops/gated.h"
#include "ops/group_bias.h"
#include "ops/row_scale.h"

namespace strata::model {
namespace {

GatedMlpParts shared_expert_parts(const BlockContext& context) {
  const auto& c = context.as<MoeConfig>();
  return {.gate = kMoeSharedGate,
          .up = kMoeSharedUp,
          .down = kMoeSharedDown,
          .width = c.shared_width,
          .activation = c.activation,
          .clamp = c.clamp};
}

// The routed experts', of which nothing but the activation is read.
GatedMlpParts activation_of(const BlockContext& context) {
  const auto& c = context.as<MoeConfig>();
  return {.activation = c.activation, .clamp = c.clamp};
}

struct Moe {
  using Config = MoeConfig;
  static constexpr BlockGroup kGroup = BlockGroup::kMlp;
  static constexpr bool kExchangesRows = true;

  struct Saved {
    Routing routing;
    TensorView gate;  // [n, F] moe_mlpwi_0, of the most rows that this rank's experts may have
    TensorView up;    // [n, F] moe_mlpwi_1
    ExpertLoraH lora_h;
    GatedMlpSaved shared;
    TensorView shared_logits;  // [T, 1] f32 shared_gate
    TensorView shared_lora_h;
    TensorView shared_branch;  // [T, D] what the shared experts give, before its norm
    TensorView routed_branch;  // [T, D] what the routed ones do
  };

  static std::string find_config_fault(const Config& c) { return find_moe_config_fault(c); }
  static std::string describe(const Config& c) {
    return fmt::format("{} experts of {}, {} a token", c.num_experts, c.expert_width, c.top_k);
  }
  static void add_params(const Config& c, int64_t d, ParamRows& rows) { add_moe_rows(c, d, rows); }
  // A rank has channels of every expert, and chooses experts as all others do.
  static Config divide(const Config& c, const TensorShare& share) {
    Config own = c;
    own.expert_width = Deal{.size = c.expert_width}.part_of(share).count;
    own.shared_width = Deal{.size = c.shared_width}.part_of(share).count;
    return own;
  }
  static CacheSpec cache_spec(const Config&, DType) { return {}; }
  static BlockWork work(const Config&) { return {}; }

  static double output_flops(const Pass& pass, const BlockContext& context) {
    if (context.as<Config>().norms_paths) return 0.0;  // but norms of activations of its own
    const auto k = static_cast<double>(context.as<Config>().top_k);
    return k * linear_flops(pass, context, kMoeDown) + linear_flops(pass, context, kMoeSharedDown);
  }

  static void allocate_always_kept(Pass& pass, const BlockContext& context, Saved& s) {
    s.routing = allocate_routing(pass, context.as<Config>());
  }

  static void allocate_saved(Pass& pass, const BlockContext& context, Saved& s) {
    const auto& c = context.as<Config>();
    const Shape shape = {most_expert_rows(pass, c), c.expert_width};
    const auto k = static_cast<double>(c.top_k);
    s.gate = pass.allocate_saved("moe_mlpwi_0", k * linear_flops(pass, context, kMoeGate),
                                 pass.dtype(), shape);
    s.up = pass.allocate_saved("moe_mlpwi_1", k * linear_flops(pass, context, kMoeUp), pass.dtype(),
                               shape);
    s.lora_h = allocate_expert_lora_h(pass, context);
    if (c.shared_width > 0)
      gated_mlp_allocate_saved(pass, context, shared_expert_parts(context), s.shared);
    if (c.norms_paths) {
      const Shape branch = {pass.num_tokens(), pass.weights.config().hidden_size};
      s.shared_branch = pass.allocate_saved("branch", linear_flops(pass, context, kMoeSharedDown),
                                            pass.dtype(), branch);
      s.routed_branch = pass.allocate_saved("branch", k * linear_flops(pass, context, kMoeDown),
                                            pass.dtype(), branch);
    }
    if (!c.shared_gate) return;
    s.shared_logits =
        pass.allocate_saved("shared_gate", linear_flops(pass, context, kMoeSharedScale),
                            DType::kF32, {pass.num_tokens(), 1});
    s.shared_lora_h = allocate_lora_h(pass, context, kMoeSharedScale);
  }

  static void forward(Pass& pass, const BlockContext& context, Saved& s, TensorView n,
                      BlockOutput output) {
    if (context.as<Config>().norms_paths) return normed_forward(pass, context, s, n, output);
    Scratch& scratch = pass.backend.scratch();
    const Scratch::Mark mark(scratch);
    if (!s.routing.is_filled) fill_routing(pass, context, n, s.routing);
    const ExpertRows rows = own_expert_rows(pass, context, s.routing, kExpertRowTag);
    if (context.as<Config>().shared_width == 0) {
      return routed_forward(pass, context, rows, s, n, output.add, output.out);
    }
    // sum = add + routed; out = sum + shared
    const TensorView sum =
        output.out.empty() ? TensorView() : pass.take(DType::kF32, {n.rows(), n.cols()});
    routed_forward(pass, context, rows, s, n, output.add, sum);
    if (context.as<Config>().shared_gate) {
      linear_forward(pass, context, kMoeSharedScale, n, {}, s.shared_lora_h, s.shared_logits);
    }
    gated_mlp_forward(pass, context, shared_expert_parts(context), s.shared, n,
                      {.add = sum, .out = output.out}, compute_shared_scales(pass, context, s));
  }

  static ops::RmsNormArgs path_norm(const BlockContext& context, MoeKey key, TensorView x) {
    return norm_args(x, context.values(key), context.as<Config>().eps, 0.0f);
  }
  // x [T, D] normed, of the compute type; in scratch.
  static TensorView normed(Pass& pass, const BlockContext& context, MoeKey key, TensorView x) {
    const TensorView y = pass.take(pass.dtype(), {x.rows(), x.cols()});
    ops::rms_norm(pass.backend, path_norm(context, key, x), y, {});
    return y;
  }
  // d_x f32 += the norm's, of which d_y f32 is the gradient.
  static void add_norm_backward(Pass& pass, const BlockContext& context, MoeKey key, TensorView x,
                                TensorView d_y, TensorView d_x) {
    ops::rms_norm_backward(pass.backend, path_norm(context, key, x), {}, d_y, d_x,
                           pass.base_gradient(context.param(key).index));
  }

  // What the router reads: D^-1/2 of a norm of the state.
  static float router_factor(TensorView x) {
    return static_cast<float>(1.0 / std::sqrt(static_cast<double>(x.cols())));
  }
  static TensorView router_input(Pass& pass, const BlockContext& context, TensorView x) {
    const TensorView y = normed(pass, context, kMoeRouterNorm, x);
    ops::scale(pass.backend, y, router_factor(x), y);
    return y;
  }

  // The numbers of the experts, [E] of one, which multiply their weights.
  static ops::TensorStack as_stack(TensorView numbers) {
    if (numbers.empty()) return {};
    return {TensorView(numbers.data, DType::kF32, {1}), dtype_bytes(DType::kF32)};
  }
  static void scale_row_weights(Pass& pass, const BlockContext& context, const Routing& routing) {
    if (routing.num_rows() == 0) return;
    const Scratch::Mark mark(pass.backend.scratch());
    const ops::GroupedRows rows = group_rows_by_expert(pass, routing);
    ops::copy(pass.backend, routing.row_weights, routing.unscaled_weights);
    ops::fill_zero(pass.backend, routing.row_weights);
    ops::add_group_bias(pass.backend, rows, as_stack(context.values(kMoeExpertScale)),
                        routing.unscaled_weights,
                        routing.row_weights.reshape({routing.num_rows(), 1}));
  }
  // d_unscaled [n] f32 of d_row_weights [n] f32.
  static void scale_row_weights_backward(Pass& pass, const BlockContext& context,
                                         const Routing& routing, TensorView d_row_weights,
                                         TensorView d_unscaled) {
    if (routing.num_rows() == 0) return;
    const Scratch::Mark mark(pass.backend.scratch());
    const ops::GroupedRows rows = group_rows_by_expert(pass, routing);
    ops::fill_zero(pass.backend, d_unscaled);
    const ParamView& scale = context.param(kMoeExpertScale);
    ops::group_bias_backward(pass.backend, rows,
                             {.bias = as_stack(scale.values),
                              .scales = routing.unscaled_weights,
                              .d_scales = d_unscaled,
                              .d_bias = as_stack(pass.base_gradient(scale.index))},
                             d_row_weights.reshape({routing.num_rows(), 1}));
  }

  // out = norm(shared(norm(x))) + norm(routed(norm(x))).
  static void normed_forward(Pass& pass, const BlockContext& context, Saved& s, TensorView x,
                             BlockOutput output) {
    CHECK(output.add.empty());
    const Scratch::Mark mark(pass.backend.scratch());
    const bool is_new = !s.routing.is_filled;
    if (is_new) {
      const Scratch::Mark inner(pass.backend.scratch());
      fill_routing(pass, context, router_input(pass, context, x), s.routing);
    }
    if (is_new) scale_row_weights(pass, context, s.routing);
    const ExpertRows rows = own_expert_rows(pass, context, s.routing, kExpertRowTag);
    {
      const Scratch::Mark inner(pass.backend.scratch());
      gated_mlp_forward(pass, context, shared_expert_parts(context), s.shared,
                        normed(pass, context, kMoeSharedNormBefore, x),
                        {.add = {}, .out = pass.unless_computed(s.shared_branch)});
    }
    {
      const Scratch::Mark inner(pass.backend.scratch());
      routed_forward(pass, context, rows, s, normed(pass, context, kMoeRoutedNormBefore, x), {},
                     pass.unless_computed(s.routed_branch));
    }
    if (output.out.empty()) return;
    const TensorView sum = pass.take(DType::kF32, {x.rows(), x.cols()});
    const TensorView routed = pass.take(DType::kF32, sum.shape);
    ops::rms_norm(pass.backend, path_norm(context, kMoeSharedNormAfter, s.shared_branch), sum, {});
    ops::rms_norm(pass.backend, path_norm(context, kMoeRoutedNormAfter, s.routed_branch), routed,
                  {});
    ops::add_into(pass.backend, routed, sum);
    ops::copy(pass.backend, sum, output.out);
  }

  // d_x += the shared path's, of the gradient d of its output.
  static void normed_shared_backward(Pass& pass, const BlockContext& context, const Saved& s,
                                     TensorView x, TensorView d, TensorView d_x) {
    const Scratch::Mark mark(pass.backend.scratch());
    const TensorView d_branch = zeros(pass, d.shape);
    add_norm_backward(pass, context, kMoeSharedNormAfter, s.shared_branch, d, d_branch);
    const TensorView d_n = pass.take(DType::kF32, d.shape);
    gated_mlp_backward(pass, context, shared_expert_parts(context), s.shared,
                       normed(pass, context, kMoeSharedNormBefore, x),
                       to_compute_dtype(pass, d_branch), d_n);
    add_norm_backward(pass, context, kMoeSharedNormBefore, x, d_n, d_x);
  }

  // The gradient of norm_after's weight, of which d [T, D] f32 is that of its output.
  static void add_routed_norm_gradient(Pass& pass, const BlockContext& context, const Saved& s,
                                       TensorView d) {
    const TensorView d_weight = pass.base_gradient(context.param(kMoeRoutedNormAfter).index);
    if (d_weight.empty()) return;
    const Scratch::Mark mark(pass.backend.scratch());
    ops::rms_norm_backward(pass.backend, path_norm(context, kMoeRoutedNormAfter, s.routed_branch),
                           {}, d, zeros(pass, d.shape), d_weight);
  }

  // d_x += the paths'; leaves d_row_weights [T * K].
  static void normed_paths_backward(Pass& pass, const BlockContext& context, const Saved& s,
                                    TensorView x, TensorView d_out, TensorView d_x,
                                    TensorView d_row_weights) {
    const Scratch::Mark mark(pass.backend.scratch());
    const ExpertRows rows = own_expert_rows(pass, context, s.routing, kExpertRowGradientTag);
    const TensorView d = pass.take(DType::kF32, {x.rows(), x.cols()});
    ops::copy(pass.backend, d_out, d);
    if (pass.dealt == nullptr) normed_shared_backward(pass, context, s, x, d, d_x);
    const Scratch::Mark inner(pass.backend.scratch());
    const TensorView d_branch = zeros(pass, d.shape);
    const TensorView d_weight = pass.base_gradient(context.param(kMoeRoutedNormAfter).index);
    ops::rms_norm_backward(pass.backend, path_norm(context, kMoeRoutedNormAfter, s.routed_branch),
                           {}, d, d_branch, pass.dealt == nullptr ? d_weight : TensorView());
    const TensorView d_n = pass.take(DType::kF32, d.shape);
    const TensorView d_rows =
        experts_backward(pass, context, rows, s, normed(pass, context, kMoeRoutedNormBefore, x),
                         to_compute_dtype(pass, d_branch), d_row_weights);
    if (pass.dealt != nullptr) {
      pass.turn->begin();
      add_routed_norm_gradient(pass, context, s, d);
      normed_shared_backward(pass, context, s, x, d, d_x);
    }
    // x[row] = n[token]
    ops::gather_sum(pass.backend, d_rows, s.routing.row_of_slot, {}, d_n);
    add_norm_backward(pass, context, kMoeRoutedNormBefore, x, d_n, d_x);
  }

  static void normed_backward(Pass& pass, const BlockContext& context, const Saved& s, TensorView x,
                              TensorView d_out, TensorView d_x) {
    const Scratch::Mark mark(pass.backend.scratch());
    const TensorView d_row_weights = pass.take(DType::kF32, {s.routing.num_rows()});
    ops::fill_zero(pass.backend, d_x);
    normed_paths_backward(pass, context, s, x, d_out, d_x, d_row_weights);
    const TensorView d_unscaled = pass.take(DType::kF32, d_row_weights.shape);
    scale_row_weights_backward(pass, context, s.routing, d_row_weights, d_unscaled);
    const TensorView d_n = zeros(pass, {x.rows(), x.cols()});
    router_backward(pass, context, s.routing, router_input(pass, context, x), d_unscaled, d_n);
    ops::scale(pass.backend, d_n, router_factor(x), d_n);
    add_norm_backward(pass, context, kMoeRouterNorm, x, d_n, d_x);
  }

  // A one for every row: one number, read again and again.
  static TensorView ones(Pass& pass, const Saved& s) {
    TensorView one = pass.take(DType::kF32, {1});
    ops::fill(pass.backend, one, 1.0f);
    TensorView view(one.data, DType::kF32, s.shared_logits.shape);
    view.row_stride = 0;
    return view;
  }

  // What the shared expert counts for each token, [T] f32 in scratch; empty where it always counts.
  static TensorView compute_shared_scales(Pass& pass, const BlockContext& context, const Saved& s) {
    if (!context.as<Config>().shared_gate) return {};
    const TensorView y = pass.take(DType::kF32, s.shared_logits.shape);
    ops::act_and_mul(pass.backend, ops::Activation::kSigmoid, s.shared_logits, ones(pass, s), y);
    return y.reshape({y.rows()});
  }

  // Writes d_n [T, D] f32: the shared expert's gradient, and its gate's.
  static void shared_backward(Pass& pass, const BlockContext& context, const Saved& s, TensorView n,
                              TensorView d_out, TensorView d_n) {
    const Scratch::Mark mark(pass.backend.scratch());
    const TensorView scales = compute_shared_scales(pass, context, s);
    const TensorView d_scales =
        scales.empty() ? TensorView() : pass.take(DType::kF32, scales.shape);
    gated_mlp_backward(pass, context, shared_expert_parts(context), s.shared, n, d_out, d_n, scales,
                       d_scales);
    if (scales.empty()) return;
    // scales = sigmoid(logits)
    const Shape& shape = s.shared_logits.shape;
    const TensorView d_logits = pass.take(DType::kF32, shape);
    ops::act_and_mul_backward(pass.backend, ops::Activation::kSigmoid, s.shared_logits,
                              ones(pass, s), d_scales.reshape(shape), d_logits,
                              pass.take(DType::kF32, shape));
    linear_backward(pass, context, kMoeSharedScale, n, s.shared_lora_h,
                    to_compute_dtype(pass, d_logits), d_n, /*accumulate=*/true);
  }

  static void backward(Pass& pass, const BlockContext& context, const Saved& s, TensorView n,
                       TensorView d_out, TensorView d_n) {
    if (context.as<Config>().norms_paths) return normed_backward(pass, context, s, n, d_out, d_n);
    const Scratch::Mark mark(pass.backend.scratch());
    const ExpertRows rows = own_expert_rows(pass, context, s.routing, kExpertRowGradientTag);
    const bool has_shared = context.as<Config>().shared_width > 0;
    const TensorView d_row_weights = pass.take(DType::kF32, {s.routing.num_rows()});
    if (has_shared && pass.dealt == nullptr) shared_backward(pass, context, s, n, d_out, d_n);
    {
      const Scratch::Mark inner(pass.backend.scratch());
      const TensorView d_rows = experts_backward(pass, context, rows, s, n, d_out, d_row_weights);
      if (pass.dealt != nullptr) {
        pass.turn->begin();
        if (has_shared) shared_backward(pass, context, s, n, d_out, d_n);
      }
      // x[row] = n[token]
      ops::gather_sum(pass.backend, d_rows, s.routing.row_of_slot, has_shared ? d_n : TensorView(),
                      d_n);
    }
    router_backward(pass, context, s.routing, n, d_row_weights, d_n);
  }

  static TensorView first_rows(TensorView saved, const ExpertRows& rows) {
    return saved.slice_rows(0, rows.count);
  }

  // What the experts read of n, a row for each token that they have: n, or times its weight.
  static TensorView expert_inputs(Pass& pass, const BlockContext& context, const ExpertRows& rows,
                                  const Saved& s, TensorView n) {
    const TensorView x = rows.gather(pass, s.routing, n);
    if (context.as<Config>().weighs_inputs) ops::scale_rows(pass.backend, x, rows.weights, x);
    return x;
  }
  // The numbers of the rows of hidden values; empty: ones.
  static TensorView hidden_weights(const BlockContext& context, const ExpertRows& rows) {
    return context.as<Config>().weighs_inputs ? TensorView() : rows.weights;
  }

  // y = weight * silu(gate) * up of every row, clamped where there is a limit.
  static void weigh_activations(Pass& pass, const BlockContext& context, const ExpertRows& rows,
                                const Saved& s, TensorView y) {
    gated_mlp_activate(pass, activation_of(context), first_rows(s.gate, rows),
                       first_rows(s.up, rows), hidden_weights(context, rows), y);
  }

  // Fills gate, up and their lora_h; then sum = add + the experts' outputs, unless sum is empty.
  static void routed_forward(Pass& pass, const BlockContext& context, const ExpertRows& rows,
                             const Saved& s, TensorView n, TensorView add, TensorView sum) {
    const Scratch::Mark mark(pass.backend.scratch());
    const ExpertLoraH lora_h = s.lora_h.first_rows(rows.count);
    {
      const Scratch::Mark inner(pass.backend.scratch());
      const TensorView x = expert_inputs(pass, context, rows, s, n);
      if (rows.count > 0) {
        expert_linear_forward(pass, context, rows.groups, kMoeGate, lora_h, x,
                              first_rows(s.gate, rows));
        expert_linear_forward(pass, context, rows.groups, kMoeUp, lora_h, x,
                              first_rows(s.up, rows));
      }
    }
    const TensorView activated = rows.take(pass, pass.dtype(), s.gate.cols());
    const TensorView y =
        sum.empty() ? TensorView() : pass.take(DType::kF32, {s.routing.num_rows(), n.cols()});
    const TensorView own_y = sum.empty() ? y : rows.take_part(pass, y);
    if (rows.count > 0) {
      weigh_activations(pass, context, rows, s, activated);
      down_forward(pass, context, rows, lora_h, activated, own_y);
    }
    if (sum.empty()) return;
    rows.bring_home(pass, own_y, y, kExpertRowTag);
    ops::gather_sum(pass.backend, y, s.routing.row_of_slot, add, sum);
  }

  // y: of this rank's experts, or empty.
  static void down_forward(Pass& pass, const BlockContext& context, const ExpertRows& rows,
                           const ExpertLoraH& lora_h, TensorView activated, TensorView y) {
    expert_linear_forward(pass, context, rows.groups, kMoeDown, lora_h, activated, y);
    if (y.empty() || !context.as<Config>().expert_bias) return;
    ops::add_group_bias(pass.backend, rows.groups, expert_biases(context, kMoeDown), rows.weights,
                        y);
  }

  // Returns the gradient of what the experts read, [T * K, D] f32 in scratch, and leaves
  // d_row_weights [T * K]. d_out [T, D] of the compute type.
  static TensorView experts_backward(Pass& pass, const BlockContext& context,
                                     const ExpertRows& rows, const Saved& s, TensorView n,
                                     TensorView d_out, TensorView d_row_weights) {
    const TensorView d_weights_of_all = d_row_weights.reshape({s.routing.num_rows(), 1});
    const TensorView d_weights = rows.take_part(pass, d_weights_of_all);
    const TensorView d_gate = rows.take(pass, pass.dtype(), s.gate.cols());
    const TensorView d_up = rows.take(pass, pass.dtype(), s.gate.cols());
    Turn turn = turn_with_experts(pass, context);
    hidden_backward(pass, context, rows, s, d_out, d_gate, d_up, d_weights.reshape({rows.count}),
                    turn);
    const TensorView d_x = pass.take(DType::kF32, {s.routing.num_rows(), n.cols()});
    const TensorView own_d_x = rows.take_part(pass, d_x);
    inputs_backward(pass, context, rows, s, n, d_gate, d_up, own_d_x,
                    d_weights.reshape({rows.count}));
    turn.end();
    rows.bring_home(pass, own_d_x, d_x, kExpertRowGradientTag);
    rows.bring_home(pass, d_weights, d_weights_of_all, kExpertRowGradientTag);
    return d_x;
  }

  // Leaves d_gate and d_up [n, F] and d_weights [n] of the rows of this rank's experts. Begins the
  // turn, with or without such rows, behind what it exchanges with ranks that wait for others'
  // turns.
  static void hidden_backward(Pass& pass, const BlockContext& context, const ExpertRows& rows,
                              const Saved& s, TensorView d_out, TensorView d_gate, TensorView d_up,
                              TensorView d_weights, Turn& turn) {
    const Scratch::Mark mark(pass.backend.scratch());
    const TensorView d_activated = rows.take(pass, pass.dtype(), s.gate.cols());
    const TensorView activated = rows.take(pass, pass.dtype(), s.gate.cols());
    // sum[t] = down(activated) of the token's rows
    const TensorView dy = rows.gather(pass, s.routing, d_out);
    turn.begin();
    if (rows.count == 0) return;
    weigh_activations(pass, context, rows, s, activated);
    expert_down_backward(pass, context, rows.groups, s.lora_h.first_rows(rows.count), activated, dy,
                         d_activated);
    // activated = weight * silu(gate) * up
    gated_mlp_activate_backward(pass, activation_of(context), context.param(kMoeDown).panel.cols,
                                first_rows(s.gate, rows), first_rows(s.up, rows),
                                hidden_weights(context, rows), d_activated, d_gate, d_up,
                                d_weights);
    down_bias_backward(pass, context, rows, dy, d_weights);
  }

  // Writes d_x [n, D] f32 of what this rank's experts read, and adds to d_weights.
  static void inputs_backward(Pass& pass, const BlockContext& context, const ExpertRows& rows,
                              const Saved& s, TensorView n, TensorView d_gate, TensorView d_up,
                              TensorView d_x, TensorView d_weights) {
    const Scratch::Mark mark(pass.backend.scratch());
    const TensorView x = expert_inputs(pass, context, rows, s, n);
    if (rows.count > 0) {
      expert_gate_up_backward(pass, context, rows.groups, s.lora_h.first_rows(rows.count), x,
                              d_gate, d_up, d_x);
    }
    if (!context.as<Config>().weighs_inputs) return;
    // x = weight * n
    rows.gather(pass, s.routing, n, x);
    if (rows.count > 0)
      ops::scale_rows_backward(pass.backend, x, rows.weights, d_x, d_x, d_weights);
  }

  // y += weight * bias of every row: adds to d_weights and to the biases' gradients.
  static void down_bias_backward(Pass& pass, const BlockContext& context, const ExpertRows& rows,
                                 TensorView dy, TensorView d_weights) {
    if (!context.as<Config>().expert_bias) return;
    ops::group_bias_backward(
        pass.backend, rows.groups,
        {.bias = expert_biases(context, kMoeDown),
         .scales = rows.weights,
         .d_scales = d_weights,
         .d_bias = expert_bias_gradients(pass, context, rows.groups, kMoeDown)},
        dy);
  }

  // d_n += the router's; its gradients.
  static void router_backward(Pass& pass, const BlockContext& context, const Routing& routing,
                              TensorView n, TensorView d_row_weights, TensorView d_n) {
    const Scratch::Mark mark(pass.backend.scratch());
    const TensorView d_logits = pass.take(pass.dtype(), routing.scores.shape);
    routing_backward(pass, context, routing, d_row_weights, d_logits);
    // logits = router(n)
    const ParamView& router = context.param(kMoeRouter);
    const TensorView d_weight = pass.base_gradient(router.index);
    if (!d_weight.empty()) ops::gemm_dw(pass.backend, d_logits, n, pass.rows.ends(), d_weight);
    const TensorView d_bias = pass.base_gradient(context.param(kMoeLogitBias).index);
    if (!d_bias.empty()) ops::add_rows_into(pass.backend, d_logits, d_bias);
    ops::gemm_dx(pass.backend, {.x = d_logits, .w = router.panel}, d_n, /*accumulate=*/true);
  }
};

}  // namespace

const BlockOps kMoe = block_ops<Moe>("moe");

}  // namespace strata::model
