// SPDX-License-Identifier: Apache-2.0
// T tokens, D model width, n streams, R numbers a token.
#include "model/connectors/hyper_connection.h"

#include <fmt/format.h>

#include "model/residual.h"
#include "ops/hyper_connection.h"

namespace strata::model {
namespace {

constexpr ScratchTag kTag = "hyper_connection";

ParamRow f32_row(int key, std::string_view suffix, const Shape& shape) {
  return {.key = key, .suffix = suffix, .shape = shape, .floor = DType::kF32};
}

TensorView by_stream(TensorView state, int64_t num_streams) {
  return state.reshape({state.rows(), num_streams, state.cols() / num_streams});
}

struct HyperConnection {
  using Config = HyperConnectionConfig;
  enum Key : uint8_t { kNorm, kFn, kBase, kScale };

  struct Saved {
    TensorView mix;      // [T, R] f32
    TensorView inv_rms;  // [T] f32
    TensorView weights;  // [T, R] f32
    TensorView branch;   // [T, D] of the compute type: the block's output
  };

  static int64_t numbers(const Config& c) { return (2 + c.num_streams) * c.num_streams; }

  static void add_params(const Config& c, int64_t hidden_size, ParamRows& rows) {
    ParamRow fn = f32_row(kFn, c.fn, {numbers(c), c.num_streams * hidden_size});
    fn.draw = ParamDraw::kNormal;
    ParamRow scale = f32_row(kScale, c.scale, {3});
    scale.init = 1.0f;
    rows.push_back({.key = kNorm, .suffix = c.norm, .shape = {hidden_size}, .init = 1.0f});
    rows.push_back(fn);
    rows.push_back(f32_row(kBase, c.base, {numbers(c)}));
    rows.push_back(scale);
  }

  // The numbers of a token, the streams' sum before the block, its output into them, and their mix.
  static double token_flops(const Config& c, int64_t hidden_size) {
    const auto n = static_cast<double>(c.num_streams);
    const auto d = static_cast<double>(hidden_size);
    return 2.0 * n * d * static_cast<double>(numbers(c)) + 2.0 * n * d + n * d + 2.0 * n * n * d;
  }

  // Forward reads the streams for their mix, their sum and the next ones, which it writes; backward
  // reads them three times too, and their gradient, which it writes as often.
  static double token_bytes(const Config& c, int64_t hidden_size, int64_t element_bytes) {
    constexpr int64_t kStateMoves = 7, kGradientMoves = 6;
    const int64_t bytes = kStateMoves * element_bytes + kGradientMoves * dtype_bytes(DType::kF32);
    return static_cast<double>(c.num_streams * hidden_size * bytes);
  }

  static constexpr bool kSavesOutput = true;
  static void allocate_saved(Pass& pass, const SublayerContext& context, Saved& s) {
    const auto& c = context.outer.as<Config>();
    const int64_t tokens = pass.num_tokens();
    const int64_t width = pass.weights.config().hidden_size;
    const double flops = 2.0 * static_cast<double>(tokens * numbers(c) * c.num_streams * width);
    s.mix = pass.allocate_saved(kTag, flops, DType::kF32, {tokens, numbers(c)});
    s.inv_rms = pass.allocate_saved(kTag, 0.0, DType::kF32, {tokens});
    s.weights = pass.allocate_saved(kTag, 0.0, DType::kF32, {tokens, numbers(c)});
    s.branch = pass.allocate_saved("branch", context.block->output_flops(pass, context.inner),
                                   pass.dtype(), {tokens, width});
  }

  static ops::HyperWeightsArgs weights_args(const BlockContext& outer, const Saved& s) {
    const auto& c = outer.as<Config>();
    return {.mix = s.mix,
            .base = outer.values(kBase),
            .scale = outer.values(kScale),
            .num_streams = c.num_streams,
            .eps = c.eps,
            .steps = c.steps};
  }
  static ops::RmsNormArgs norm_of(const BlockContext& outer, TensorView x) {
    return norm_args(x, outer.values(kNorm), outer.as<Config>().norm_eps, 0.0f);
  }
  // [T, D] f32, from the scratch.
  static TensorView collapsed(Pass& pass, const BlockContext& outer, const Saved& s,
                              TensorView state) {
    const int64_t num_streams = outer.as<Config>().num_streams;
    const TensorView y = pass.take(DType::kF32, {state.rows(), state.cols() / num_streams});
    ops::hyper_collapse(pass.backend, by_stream(state, num_streams), s.weights, y);
    return y;
  }
  // What the block reads, from the scratch.
  static TensorView normed(Pass& pass, const BlockContext& outer, TensorView y) {
    const TensorView n = pass.take(pass.dtype(), {y.rows(), y.cols()});
    ops::rms_norm(pass.backend, norm_of(outer, y), n, {});
    return n;
  }

  static void forward(Pass& pass, const SublayerContext& context, const SublayerSaved& saved,
                      TensorView state, TensorView out) {
    const Scratch::Mark mark(pass.backend.scratch());
    const auto& s = *static_cast<const Saved*>(saved.outer);
    const auto& c = context.outer.as<Config>();
    if (!pass.is_computed(s.weights)) {
      ops::hyper_mix(pass.backend, state, context.outer.values(kFn), static_cast<float>(c.norm_eps),
                     s.mix, s.inv_rms);
      ops::hyper_weights(pass.backend, weights_args(context.outer, s), s.weights);
    }
    const TensorView n = normed(pass, context.outer, collapsed(pass, context.outer, s, state));
    context.block->forward(pass, context.inner, saved.inner, n,
                           {.add = {}, .out = pass.unless_computed(s.branch)});
    if (out.empty()) return;
    ops::hyper_expand(pass.backend, by_stream(state, c.num_streams), s.branch, s.weights,
                      by_stream(out, c.num_streams));
  }

  static void backward(Pass& pass, const SublayerContext& context, const SublayerSaved& saved,
                       TensorView state, TensorView d) {
    const Scratch::Mark mark(pass.backend.scratch());
    const auto& s = *static_cast<const Saved*>(saved.outer);
    const BlockContext& outer = context.outer;
    const int64_t n_streams = outer.as<Config>().num_streams;
    const TensorView streams = by_stream(state, n_streams);
    const TensorView d_weights = pass.take(DType::kF32, s.weights.shape);
    const TensorView d_branch = pass.take(DType::kF32, s.branch.shape);
    // out_j = post_j branch + sum_i comb_ij state_i
    ops::hyper_expand_backward(pass.backend, streams, s.branch, s.weights, by_stream(d, n_streams),
                               d_branch, d_weights);
    const TensorView y = collapsed(pass, outer, s, state);
    const TensorView n = normed(pass, outer, y);
    const TensorView d_n = pass.take(DType::kF32, y.shape);
    // branch = block(n)
    context.block->backward(pass, context.inner, saved.inner, n, to_compute_dtype(pass, d_branch),
                            d_n);
    // n = norm(y)
    const TensorView d_y = zeros(pass, y.shape);
    ops::rms_norm_backward(pass.backend, norm_of(outer, y), {}, d_n, d_y,
                           pass.base_gradient(outer.param(kNorm).index));
    // y = sum_i pre_i state_i
    ops::hyper_collapse_backward(pass.backend, streams, s.weights, d_y, by_stream(d, n_streams),
                                 d_weights);
    const TensorView d_mix = pass.take(DType::kF32, s.mix.shape);
    ops::hyper_weights_backward(pass.backend, weights_args(outer, s), d_weights, d_mix,
                                pass.base_gradient(outer.param(kBase).index),
                                pass.base_gradient(outer.param(kScale).index));
    ops::hyper_mix_backward(pass.backend, state, outer.values(kFn), s.mix, s.inv_rms, d_mix, d,
                            pass.base_gradient(outer.param(kFn).index));
  }
};

struct HyperHead {
  using Config = HyperHeadConfig;
  enum Key : uint8_t { kFn, kBase, kScale };

  static void add_params(const Config&, int64_t num_streams, int64_t hidden_size, ParamRows& rows) {
    ParamRow fn = f32_row(kFn, "hc_head.hc_fn", {num_streams, num_streams * hidden_size});
    fn.draw = ParamDraw::kNormal;
    ParamRow scale = f32_row(kScale, "hc_head.hc_scale", {1});
    scale.init = 1.0f;
    rows.push_back(fn);
    rows.push_back(f32_row(kBase, "hc_head.hc_base", {num_streams}));
    rows.push_back(scale);
  }

  // Weights of the streams, in scratch.
  struct Weights {
    TensorView mix, inv_rms, weights;
    int64_t num_streams;

    Weights(Pass& pass, const BlockContext& context, TensorView state)
        : mix(pass.take(DType::kF32, {state.rows(), context.values(kBase).cols()})),
          inv_rms(pass.take(DType::kF32, {state.rows()})),
          weights(pass.take(DType::kF32, mix.shape)),
          num_streams(mix.cols()) {
      ops::hyper_mix(pass.backend, state, context.values(kFn),
                     static_cast<float>(context.as<Config>().norm_eps), mix, inv_rms);
      ops::hyper_weights(pass.backend, args(context), weights);
    }
    [[nodiscard]] ops::HyperWeightsArgs args(const BlockContext& context) const {
      return {.mix = mix,
              .base = context.values(kBase),
              .scale = context.values(kScale),
              .num_streams = num_streams,
              .eps = context.as<Config>().eps};
    }
  };

  static void collapse(Pass& pass, const BlockContext& context, TensorView state, TensorView out) {
    const Scratch::Mark mark(pass.backend.scratch());
    const Weights w(pass, context, state);
    const TensorView y = pass.take(DType::kF32, out.shape);
    ops::hyper_collapse(pass.backend, by_stream(state, w.num_streams), w.weights, y);
    ops::copy(pass.backend, y, out);
  }

  static void collapse_backward(Pass& pass, const BlockContext& context, TensorView state,
                                TensorView d_out, TensorView d_state) {
    const Scratch::Mark mark(pass.backend.scratch());
    const Weights w(pass, context, state);
    const TensorView d_weights = pass.take(DType::kF32, w.weights.shape);
    const TensorView d_mix = pass.take(DType::kF32, w.mix.shape);
    ops::fill_zero(pass.backend, d_state);
    ops::hyper_collapse_backward(pass.backend, by_stream(state, w.num_streams), w.weights, d_out,
                                 by_stream(d_state, w.num_streams), d_weights);
    ops::hyper_weights_backward(pass.backend, w.args(context), d_weights, d_mix,
                                pass.base_gradient(context.param(kBase).index),
                                pass.base_gradient(context.param(kScale).index));
    ops::hyper_mix_backward(pass.backend, state, context.values(kFn), w.mix, w.inv_rms, d_mix,
                            d_state, pass.base_gradient(context.param(kFn).index));
  }
};

}  // namespace

const ConnectorOps kHyperConnection = connector_ops<HyperConnection>("hyper_connection");
const StreamsOps kHyperHead = streams_ops<HyperHead>("hyper_head");

std::string hyper_connection_fault(int64_t num_streams, int64_t steps) {
  if (num_streams < 1 || num_streams > ops::kMaxStreams) {
    return fmt::format("hc_mult: got {}, want 1 to {}", num_streams, ops::kMaxStreams);
  }
  if (steps < 1 || steps > ops::kMaxSinkhornSteps) {
    return fmt::format("hc_sinkhorn_iters: got {}, want 1 to {}", steps, ops::kMaxSinkhornSteps);
  }
  return {};
}

}  // namespace strata::model
