// SPDX-License-Identifier: Apache-2.0
#include "ops/tail_rope.h"

#include "ops/checks.h"
#include "ops/rows.h"
#include "ops/stage.h"

namespace strata::ops {
namespace {

void check_like(const TensorView& view, const TailRopeArgs& args) {
  CHECK(is_float(view.dtype) && view.dense() && view.shape == args.x.shape, view.dtype,
        view.shape.to_string(), args.x.shape.to_string());
}

void check_args(const Backend& backend, const TailRopeArgs& args) {
  check_like(args.x, args);
  CHECK(args.x.shape.rank() == 3, args.x.shape.to_string());
  const int64_t width = args.x.shape[2];
  const int64_t rotated = 2 * args.cos.cols();
  CHECK(rotated <= width && (width - rotated) % 2 == 0 && width <= kMaxTailWidth, rotated, width);
  CHECK(args.cos.dtype == DType::kF32 && args.sin.dtype == DType::kF32 &&
            args.cos.shape == args.sin.shape && args.cos.row_stride == args.sin.row_stride,
        args.cos.shape.to_string(), args.sin.shape.to_string());
  CHECK(args.weight.empty() ||
            (args.norm && args.weight.dtype == DType::kF32 && args.weight.shape == Shape{width}),
        args.weight.shape.to_string());
  CHECK(std::ssize(args.positions) == args.x.shape[0], args.positions.size());
  for (const int32_t position : args.positions) {
    if (backend.is_counting()) break;
    DCHECK(0 <= position && position < args.cos.rows(), position, args.cos.rows());
  }
}

}  // namespace

void tail_rope(Backend& backend, const TailRopeArgs& args, TensorView y) {
  check_args(backend, args);
  check_like(y, args);
  backend.call()->tail_rope.forward(backend, with_staged_positions(backend, args), y);
}

void tail_rope_backward(Backend& backend, const TailRopeArgs& args, TensorView d_y, TensorView d_x,
                        TensorView d_weight) {
  check_args(backend, args);
  check_like(d_y, args);
  check_like(d_x, args);
  CHECK(d_weight.empty() || (!args.weight.empty() && d_weight.dtype == DType::kF32 &&
                             d_weight.shape == args.weight.shape && d_y.data != d_x.data),
        d_weight.shape.to_string());
  backend.call()->tail_rope.backward(backend, with_staged_positions(backend, args), d_y, d_x,
                                     d_weight);
}

}  // namespace strata::ops
