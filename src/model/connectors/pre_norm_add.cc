// SPDX-License-Identifier: Apache-2.0
#include "model/connectors/pre_norm_add.h"

#include "model/residual.h"

namespace strata::model {
namespace {

struct PreNormAdd {
  using Config = PreNormAddConfig;
  struct Saved {};
  enum Key : uint8_t { kNorm };

  static void add_params(const Config& c, int64_t hidden_size, ParamRows& rows) {
    rows.push_back(
        {.key = kNorm, .suffix = c.norm, .shape = {hidden_size}, .init = 1.0f - c.norm_offset});
  }
  static constexpr bool kSavesOutput = false;
  static void allocate_saved(Pass&, const SublayerContext&, Saved&) {}

  static ops::RmsNormArgs norm_of(const BlockContext& outer, TensorView state) {
    const auto& c = outer.as<Config>();
    return norm_args(state, outer.values(kNorm), c.eps, c.norm_offset);
  }
  // norm(state) in the compute type, from the scratch.
  static TensorView normed(Pass& pass, const BlockContext& outer, TensorView state) {
    const TensorView n = pass.take(pass.dtype(), {state.rows(), state.cols()});
    ops::rms_norm(pass.backend, norm_of(outer, state), n, {});
    return n;
  }

  static void forward(Pass& pass, const SublayerContext& context, const SublayerSaved& saved,
                      TensorView state, TensorView out) {
    const Scratch::Mark mark(pass.backend.scratch());
    const TensorView n = normed(pass, context.outer, state);
    const float scale = context.outer.as<Config>().branch_scale;
    if (scale == 1.0f || out.empty()) {
      context.block->forward(pass, context.inner, saved.inner, n, {.add = state, .out = out});
      return;
    }
    const TensorView sum = f32_accumulator(pass, out);
    context.block->forward(pass, context.inner, saved.inner, n, {.add = {}, .out = sum});
    ops::scale(pass.backend, sum, scale, sum);
    ops::add_into(pass.backend, state, sum);
    round_sum(pass, sum, out);
  }

  // scale d, in scratch; d itself where that is 1.
  static TensorView scaled(Pass& pass, TensorView d, float scale) {
    if (scale == 1.0f) return d;
    const TensorView y = pass.take(DType::kF32, {d.rows(), d.cols()});
    ops::scale(pass.backend, d, scale, y);
    return y;
  }

  static void backward(Pass& pass, const SublayerContext& context, const SublayerSaved& saved,
                       TensorView state, TensorView d) {
    const Scratch::Mark mark(pass.backend.scratch());
    const TensorView n = normed(pass, context.outer, state);
    const TensorView d_n = pass.take(DType::kF32, {d.rows(), d.cols()});
    // out = state + branch_scale block(n)
    const TensorView d_branch = scaled(pass, d, context.outer.as<Config>().branch_scale);
    context.block->backward(pass, context.inner, saved.inner, n, to_compute_dtype(pass, d_branch),
                            d_n);
    // n = norm(state); the residual path is d itself
    ops::rms_norm_backward(pass.backend, norm_of(context.outer, state), {}, d_n, d,
                           pass.base_gradient(context.outer.param(kNorm).index));
  }
};

}  // namespace

const ConnectorOps kPreNormAdd = connector_ops<PreNormAdd>("pre_norm_add");

}  // namespace strata::model
