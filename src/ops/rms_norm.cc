// SPDX-License-Identifier: Apache-2.0
#include "ops/rms_norm.h"

#include "ops/checks.h"
#include "ops/rows.h"

namespace strata::ops {
namespace {

void check_args(const RmsNormArgs& args) {
  CHECK(is_float(args.x.dtype));
  if (args.weight.empty()) {
    CHECK(args.weight_offset == 0.0f);
    return;
  }
  CHECK(args.weight.dtype == DType::kF32 && args.weight.shape == Shape{args.x.cols()},
        args.weight.shape.to_string(), args.x.shape.to_string());
}

void check_inv_rms(TensorView inv_rms, const RmsNormArgs& args) {
  if (inv_rms.empty()) return;
  CHECK(inv_rms.dtype == DType::kF32 && inv_rms.shape == Shape{args.x.rows()},
        inv_rms.shape.to_string(), args.x.rows());
}

}  // namespace

void rms_norm(Backend& backend, const RmsNormArgs& args, TensorView y, TensorView inv_rms) {
  check_args(args);
  CHECK(is_float(y.dtype) && y.shape == args.x.shape, y.shape.to_string(),
        args.x.shape.to_string());
  check_inv_rms(inv_rms, args);
  backend.call()->rms_norm.forward(backend, args, y, inv_rms);
}

void rms_norm_backward(Backend& backend, const RmsNormArgs& args, TensorView inv_rms,
                       TensorView d_y, TensorView d_x, TensorView d_weight) {
  check_args(args);
  CHECK(d_y.dtype == DType::kF32 && d_y.shape == args.x.shape, d_y.shape.to_string());
  CHECK(d_x.dtype == DType::kF32 && d_x.shape == args.x.shape, d_x.shape.to_string());
  check_inv_rms(inv_rms, args);
  CHECK(d_weight.empty() || (d_weight.dtype == DType::kF32 && d_weight.shape == args.weight.shape),
        d_weight.shape.to_string());
  backend.call()->rms_norm.backward(backend, args, inv_rms, d_y, d_x, d_weight);
}

}  // namespace strata::ops
