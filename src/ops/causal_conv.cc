// SPDX-License-Identifier: Apache-2.0
#include "ops/causal_conv.h"

#include "ops/checks.h"
#include "ops/rows.h"
#include "ops/stage.h"

namespace strata::ops {
namespace {

void check_segments(const Backend& backend, const CausalConvArgs& args) {
  int64_t last_end = 0;
  for (const StateSegment& segment : args.segments) {
    CHECK(
        last_end <= segment.begin && segment.begin <= segment.end && segment.end <= args.x.shape[0],
        last_end, segment.begin, segment.end, args.x.shape[0]);
    CHECK(segment.first_position >= 0, segment.first_position);
    CHECK(segment.first_position == 0 || segment.state != nullptr || backend.is_counting(),
          segment.first_position);
    last_end = segment.end;
  }
}

void check_per_channel(const TensorView& view, const CausalConvArgs& args) {
  CHECK(view.dtype == DType::kF32 && view.dense() && view.shape == Shape{args.x.shape[1]},
        view.dtype, view.shape.to_string(), args.x.shape.to_string());
}

void check_args(const Backend& backend, const CausalConvArgs& args) {
  CHECK(is_float(args.x.dtype) && args.x.shape.rank() == 2, args.x.dtype, args.x.shape.to_string());
  CHECK(args.weight.dtype == DType::kF32 && args.weight.shape.rank() == 2 && args.weight.dense() &&
            args.weight.shape[0] == args.x.shape[1],
        args.weight.shape.to_string(), args.x.shape.to_string());
  CHECK(1 <= args.weight.shape[1] && args.weight.shape[1] <= kMaxConvTaps,
        args.weight.shape.to_string());
  if (!args.bias.empty()) check_per_channel(args.bias, args);
  check_segments(backend, args);
}

}  // namespace

void causal_conv(Backend& backend, const CausalConvArgs& args, TensorView y) {
  check_args(backend, args);
  CHECK(y.dtype == args.x.dtype && y.shape == args.x.shape, y.dtype, y.shape.to_string(),
        args.x.shape.to_string());
  backend.call()->causal_conv.forward(backend, with_staged_segments(backend, args), y);
}

void causal_conv_backward(Backend& backend, const CausalConvArgs& args, TensorView d_y,
                          TensorView d_x, TensorView d_weight, TensorView d_bias) {
  check_args(backend, args);
  for (const StateSegment& segment : args.segments) {
    CHECK(segment.first_position == 0, segment.first_position);
  }
  CHECK(is_float(d_y.dtype) && d_y.shape == args.x.shape, d_y.dtype, d_y.shape.to_string());
  CHECK(is_float(d_x.dtype) && d_x.shape == args.x.shape, d_x.dtype, d_x.shape.to_string());
  CHECK(d_weight.empty() || (d_weight.dtype == DType::kF32 && d_weight.dense() &&
                             d_weight.shape == args.weight.shape),
        d_weight.dtype, d_weight.shape.to_string());
  if (!d_bias.empty()) check_per_channel(d_bias, args);
  backend.call()->causal_conv.backward(backend, with_staged_segments(backend, args), d_y, d_x,
                                       d_weight, d_bias);
}

}  // namespace strata::ops
