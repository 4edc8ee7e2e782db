// SPDX-License-Identifier: Apache-2.0
// What connectors and the final norm share: the norm of a residual and the rounding of a residual
// gradient. Internal to model/.
#pragma once
#include "model/pass/pass.h"
#include "ops/elementwise.h"
#include "ops/rms_norm.h"

namespace strata::model {

// The multiplier is `offset` plus the weight.
inline ops::RmsNormArgs norm_args(TensorView x, TensorView weight, double eps, float offset) {
  return {.x = x, .weight = weight, .eps = static_cast<float>(eps), .weight_offset = offset};
}

// The gradient as a product reads it: itself in f32 mode, rounded to bf16 in bf16 mode.
inline TensorView rounded(const Pass& pass, TensorView d) {
  if (pass.dtype() == DType::kF32) return d;
  const TensorView y = pass.take(pass.dtype(), {d.rows(), d.cols()});
  ops::copy(pass.backend, d, y);
  return y;
}

// Zeros [rows, cols] f32 of the scratch.
inline TensorView zeros(const Pass& pass, const Shape& shape) {
  const TensorView y = pass.take(DType::kF32, shape);
  ops::fill_zero(pass.backend, y);
  return y;
}

}  // namespace strata::model
