// SPDX-License-Identifier: Apache-2.0
// T tokens, D model width.
#include "model/connectors/post_norm_add.h"

#include "model/residual.h"

namespace strata::model {
namespace {

struct PostNormAdd {
  using Config = PostNormAddConfig;
  enum Key : uint8_t { kBefore, kAfter, kScale };

  struct Saved {
    TensorView branch;  // [T, D] of the compute type, before its norm
  };

  static void add_params(const Config& c, int64_t hidden_size, ParamRows& rows) {
    const float init = 1.0f - c.norm_offset;
    if (!c.before.empty())
      rows.push_back({.key = kBefore, .suffix = c.before, .shape = {hidden_size}, .init = init});
    rows.push_back({.key = kAfter, .suffix = c.after, .shape = {hidden_size}, .init = init});
    if (!c.scale.empty())
      rows.push_back(
          {.key = kScale, .suffix = c.scale, .shape = {1}, .buffer = true, .init = 1.0f});
  }

  static constexpr bool kSavesOutput = true;
  static void allocate_saved(Pass& pass, const SublayerContext& context, Saved& s) {
    const int64_t width = pass.weights.config().hidden_size;
    s.branch = pass.allocate_saved("branch", context.block->output_flops(pass, context.inner),
                                   pass.dtype(), {pass.num_tokens(), width});
  }

  static ops::RmsNormArgs norm(const BlockContext& outer, Key key, TensorView x) {
    const auto& c = outer.as<Config>();
    return norm_args(x, outer.values(key), c.eps, c.norm_offset);
  }

  // norm_before(state) in the compute type, from the scratch; without that norm the state in it.
  static TensorView normed(Pass& pass, const BlockContext& outer, TensorView state) {
    if (outer.as<Config>().before.empty()) {
      return state.dtype == pass.dtype() ? state : to_compute_dtype(pass, state);
    }
    const TensorView n = pass.take(pass.dtype(), {state.rows(), state.cols()});
    ops::rms_norm(pass.backend, norm(outer, kBefore, state), n, {});
    return n;
  }

  static void scale_in_place(Pass& pass, const BlockContext& outer, TensorView x) {
    if (outer.as<Config>().scale.empty()) return;
    ops::scale_by(pass.backend, x, outer.values(kScale), x);
  }

  static void forward(Pass& pass, const SublayerContext& context, const SublayerSaved& saved,
                      TensorView state, TensorView out) {
    const Scratch::Mark mark(pass.backend.scratch());
    const auto& s = *static_cast<const Saved*>(saved.outer);
    const TensorView n = normed(pass, context.outer, state);
    context.block->forward(pass, context.inner, saved.inner, n,
                           {.add = {}, .out = pass.unless_computed(s.branch)});
    if (out.empty()) return;
    // out = scale (state + norm_after(branch)), rounded once
    const TensorView sum = f32_accumulator(pass, out);
    ops::rms_norm(pass.backend, norm(context.outer, kAfter, s.branch), sum, {});
    ops::add_into(pass.backend, state, sum);
    scale_in_place(pass, context.outer, sum);
    round_sum(pass, sum, out);
  }

  static void backward(Pass& pass, const SublayerContext& context, const SublayerSaved& saved,
                       TensorView state, TensorView d) {
    const Scratch::Mark mark(pass.backend.scratch());
    const auto& s = *static_cast<const Saved*>(saved.outer);
    const TensorView d_branch = zeros(pass, {d.rows(), d.cols()});
    // out = scale (state + norm_after(branch))
    scale_in_place(pass, context.outer, d);
    const TensorView d_weight = pass.base_gradient(context.outer.param(kAfter).index);
    const bool has_turn = pass.turn == nullptr || pass.turn->has_begun();
    ops::rms_norm_backward(pass.backend, norm(context.outer, kAfter, s.branch), {}, d, d_branch,
                           has_turn ? d_weight : TensorView());
    const TensorView n = normed(pass, context.outer, state);
    const TensorView d_n = pass.take(DType::kF32, {d.rows(), d.cols()});
    // branch = block(n)
    context.block->backward(pass, context.inner, saved.inner, n, to_compute_dtype(pass, d_branch),
                            d_n);
    if (!has_turn && !d_weight.empty()) {
      const Scratch::Mark inner(pass.backend.scratch());
      ops::rms_norm_backward(pass.backend, norm(context.outer, kAfter, s.branch), {}, d,
                             zeros(pass, d.shape), d_weight);
    }
    // n = norm_before(state), or state; the residual path is d itself
    if (context.outer.as<Config>().before.empty()) return ops::add_into(pass.backend, d_n, d);
    ops::rms_norm_backward(pass.backend, norm(context.outer, kBefore, state), {}, d_n, d,
                           pass.base_gradient(context.outer.param(kBefore).index));
  }
};

}  // namespace

const ConnectorOps kPostNormAdd = connector_ops<PostNormAdd>("post_norm_add");

}  // namespace strata::model
