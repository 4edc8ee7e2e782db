// SPDX-License-Identifier: Apache-2.0
#include "ops/rope.h"

#include "ops/checks.h"
#include "ops/rows.h"
#include "ops/stage.h"

namespace strata::ops {
namespace {

void check_args(const HeadNormRopeArgs& args) {
  CHECK(is_float(args.x.dtype) && args.x.shape.rank() == 3, args.x.shape.to_string());
  const int64_t dim = args.x.cols();
  const int64_t rotary_dim = args.rotary_width();
  CHECK(rotary_dim % 2 == 0 && 0 <= rotary_dim && rotary_dim <= dim, rotary_dim, dim);
  CHECK(std::ssize(args.positions) == args.x.shape[0], args.positions.size(),
        args.x.shape.to_string());
  CHECK(
      args.weight.empty() || (args.weight.dtype == DType::kF32 && args.weight.shape == Shape{dim}),
      args.weight.shape.to_string());
  CHECK(args.cos.dtype == DType::kF32 && args.sin.dtype == DType::kF32);
  CHECK(args.cos.cols() == rotary_dim / 2 && args.sin.shape == args.cos.shape &&
            args.sin.row_stride == args.cos.row_stride,
        args.cos.shape.to_string(), args.sin.shape.to_string(), rotary_dim);
  CHECK(!args.interleaved || (args.weight.empty() && dim <= kMaxInterleavedDim), rotary_dim, dim);
  for (const int32_t position : args.positions) {
    CHECK(position >= 0 && position < args.cos.rows(), position, args.cos.rows());
  }
}

}  // namespace

void head_norm_rope(Backend& backend, const HeadNormRopeArgs& args, TensorView y) {
  check_args(args);
  CHECK(y.dtype == args.x.dtype && y.shape == args.x.shape, y.shape.to_string(),
        args.x.shape.to_string());
  backend.call()->rope.forward(backend, with_staged_positions(backend, args), y);
}

void head_norm_rope_backward(Backend& backend, const HeadNormRopeArgs& args, TensorView d_y,
                             TensorView d_x, TensorView d_weight) {
  check_args(args);
  CHECK(is_float(d_y.dtype) && d_y.shape == args.x.shape, d_y.shape.to_string());
  CHECK(is_float(d_x.dtype) && d_x.shape == args.x.shape, d_x.shape.to_string());
  CHECK(d_weight.empty() || (d_weight.dtype == DType::kF32 && d_weight.shape == args.weight.shape),
        d_weight.shape.to_string());
  backend.call()->rope.backward(backend, with_staged_positions(backend, args), d_y, d_x, d_weight);
}

}  // namespace strata::ops
