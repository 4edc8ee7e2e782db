// SPDX-License-Identifier: Apache-2.0
#include "ops/gated_norm.h"

#include "ops/checks.h"
#include "ops/rows.h"

namespace strata::ops {
namespace {

// [T, N, D] or [T, N D].
void check_heads(TensorView view, const GatedNormArgs& args) {
  const Shape& heads = args.x.shape;
  CHECK(view.shape == heads || view.shape == (Shape{heads[0], heads[1] * heads[2]}),
        view.shape.to_string(), heads.to_string());
}

void check_args(const GatedNormArgs& args) {
  CHECK(is_float(args.x.dtype) && args.x.shape.rank() == 3, args.x.dtype, args.x.shape.to_string());
  CHECK(args.z.dtype == args.x.dtype, args.z.dtype, args.x.dtype);
  check_heads(args.z, args);
  CHECK(args.weight.dtype == DType::kF32 && args.weight.shape == Shape{args.x.cols()},
        args.weight.shape.to_string(), args.x.shape.to_string());
}

}  // namespace

void gated_norm(Backend& backend, const GatedNormArgs& args, TensorView y) {
  check_args(args);
  CHECK(y.dtype == args.x.dtype, y.dtype, args.x.dtype);
  check_heads(y, args);
  backend.call()->gated_norm.forward(backend, args, y);
}

void gated_norm_backward(Backend& backend, const GatedNormArgs& args, TensorView d_y,
                         TensorView d_x, TensorView d_z, TensorView d_weight) {
  check_args(args);
  CHECK(is_float(d_y.dtype), d_y.dtype);
  CHECK(d_x.dtype == args.x.dtype && d_z.dtype == args.x.dtype, d_x.dtype, d_z.dtype, args.x.dtype);
  CHECK(d_weight.empty() || (d_weight.dtype == DType::kF32 && d_weight.shape == args.weight.shape),
        d_weight.dtype, d_weight.shape.to_string());
  for (const TensorView& view : {d_y, d_x, d_z}) check_heads(view, args);
  backend.call()->gated_norm.backward(backend, args, d_y, d_x, d_z, d_weight);
}

}  // namespace strata::ops
