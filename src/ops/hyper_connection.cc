// SPDX-License-Identifier: Apache-2.0
// T tokens, S streams, D model width, R numbers a token.
#include "ops/hyper_connection.h"

#include "ops/checks.h"
#include "ops/rows.h"

namespace strata::ops {
namespace {

void check_f32(const TensorView& view, int64_t rows, int64_t cols) {
  CHECK(view.dtype == DType::kF32 && view.dense() && view.rows() == rows && view.cols() == cols,
        view.dtype, view.shape.to_string(), rows, cols);
}

void check_values(const TensorView& view, int64_t count) {
  CHECK(view.dtype == DType::kF32 && view.dense() && view.shape.num_elements() == count, view.dtype,
        view.shape.to_string(), count);
}

int64_t numbers_of(int64_t num_streams) { return 2 * num_streams + num_streams * num_streams; }

// streams [T, S, D] with weights [T, R].
void check_streams_and_weights(const TensorView& streams, const TensorView& weights) {
  CHECK(is_float(streams.dtype) && streams.dense() && streams.shape.rank() == 3, streams.dtype,
        streams.shape.to_string());
  const int64_t num_streams = streams.shape[1];
  CHECK(1 <= num_streams && num_streams <= kMaxStreams, num_streams);
  CHECK(weights.cols() == num_streams || weights.cols() == numbers_of(num_streams),
        weights.shape.to_string(), num_streams);
  check_f32(weights, streams.shape[0], weights.cols());
}

// streams [T, S D], where S is left open, with fn [R, S D].
void check_mix(const TensorView& streams, const TensorView& fn, const TensorView& mix,
               const TensorView& inv_rms) {
  CHECK(is_float(streams.dtype) && streams.dense() && streams.shape.rank() == 2, streams.dtype,
        streams.shape.to_string());
  check_f32(fn, fn.rows(), streams.cols());
  check_f32(mix, streams.rows(), fn.rows());
  check_values(inv_rms, streams.rows());
}

void check_expand(const TensorView& streams, const TensorView& out, const TensorView& weights) {
  check_streams_and_weights(streams, weights);
  CHECK(weights.cols() == numbers_of(streams.shape[1]), weights.cols());
  CHECK(is_float(out.dtype) && out.dense() &&
            out.shape == (Shape{streams.shape[0], streams.shape[2]}),
        out.shape.to_string());
}

void check_weights_args(const HyperWeightsArgs& args) {
  const int64_t n = args.num_streams;
  CHECK(1 <= n && n <= kMaxStreams, n);
  CHECK(args.mix.cols() == n || args.mix.cols() == numbers_of(n), args.mix.cols(), n);
  check_f32(args.mix, args.mix.rows(), args.mix.cols());
  check_values(args.base, args.mix.cols());
  check_values(args.scale, args.has_output() ? 3 : 1);
  CHECK(1 <= args.steps && args.steps <= kMaxSinkhornSteps, args.steps);
}

}  // namespace

void hyper_mix(Backend& backend, TensorView streams, TensorView fn, float norm_eps, TensorView mix,
               TensorView inv_rms) {
  check_mix(streams, fn, mix, inv_rms);
  backend.call()->hyper_connection.mix(backend, streams, fn, norm_eps, mix, inv_rms);
}

void hyper_mix_backward(Backend& backend, TensorView streams, TensorView fn, TensorView mix,
                        TensorView inv_rms, TensorView d_mix, TensorView d_streams,
                        TensorView d_fn) {
  check_mix(streams, fn, mix, inv_rms);
  check_f32(d_mix, streams.rows(), fn.rows());
  check_f32(d_streams, streams.rows(), streams.cols());
  if (!d_fn.empty()) check_f32(d_fn, fn.rows(), fn.cols());
  backend.call()->hyper_connection.mix_backward(backend, streams, fn, mix, inv_rms, d_mix,
                                                d_streams, d_fn);
}

void hyper_weights(Backend& backend, const HyperWeightsArgs& args, TensorView weights) {
  check_weights_args(args);
  check_f32(weights, args.mix.rows(), args.mix.cols());
  backend.call()->hyper_connection.weights(backend, args, weights);
}

void hyper_weights_backward(Backend& backend, const HyperWeightsArgs& args, TensorView d_weights,
                            TensorView d_mix, TensorView d_base, TensorView d_scale) {
  check_weights_args(args);
  const int64_t numbers = args.mix.cols();
  check_f32(d_weights, args.mix.rows(), numbers);
  check_f32(d_mix, args.mix.rows(), numbers);
  if (!d_base.empty()) check_values(d_base, numbers);
  if (!d_scale.empty()) check_values(d_scale, args.scale.cols());
  backend.call()->hyper_connection.weights_backward(backend, args, d_weights, d_mix, d_base,
                                                    d_scale);
}

void hyper_collapse(Backend& backend, TensorView streams, TensorView weights, TensorView y) {
  check_streams_and_weights(streams, weights);
  check_f32(y, streams.shape[0], streams.shape[2]);
  backend.call()->hyper_connection.collapse(backend, streams, weights, y);
}

void hyper_collapse_backward(Backend& backend, TensorView streams, TensorView weights,
                             TensorView d_y, TensorView d_streams, TensorView d_weights) {
  check_streams_and_weights(streams, weights);
  check_f32(d_y, streams.shape[0], streams.shape[2]);
  check_f32(d_streams, streams.rows(), streams.shape[2]);
  check_f32(d_weights, weights.rows(), weights.cols());
  backend.call()->hyper_connection.collapse_backward(backend, streams, weights, d_y, d_streams,
                                                     d_weights);
}

void hyper_expand(Backend& backend, TensorView streams, TensorView out, TensorView weights,
                  TensorView y) {
  check_expand(streams, out, weights);
  CHECK(is_float(y.dtype) && y.dense() && y.shape == streams.shape, y.shape.to_string());
  backend.call()->hyper_connection.expand(backend, streams, out, weights, y);
}

void hyper_expand_backward(Backend& backend, TensorView streams, TensorView out, TensorView weights,
                           TensorView d, TensorView d_out, TensorView d_weights) {
  check_expand(streams, out, weights);
  check_f32(d, streams.rows(), streams.shape[2]);
  check_f32(d_out, streams.shape[0], streams.shape[2]);
  check_f32(d_weights, weights.rows(), weights.cols());
  backend.call()->hyper_connection.expand_backward(backend, streams, out, weights, d, d_out,
                                                   d_weights);
}

}  // namespace strata::ops
