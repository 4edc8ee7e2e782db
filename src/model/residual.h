// SPDX-License-Identifier: Apache-2.0
// What works on a residual shares: its norm, the rounding of its gradient, and its streams.
// Internal to model/. T tokens, D model width, n streams.
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
inline TensorView to_compute_dtype(const Pass& pass, TensorView d) {
  if (pass.dtype() == DType::kF32) return d;
  const TensorView y = pass.take(pass.dtype(), {d.rows(), d.cols()});
  ops::copy(pass.backend, d, y);
  return y;
}

// Where a state [T, D] is summed in f32 before it is rounded once: `out` itself where it is f32,
// else the scratch, from which round_sum rounds it.
inline TensorView f32_accumulator(const Pass& pass, TensorView out) {
  return out.dtype == DType::kF32 ? out : pass.take(DType::kF32, {out.rows(), out.cols()});
}
inline void round_sum(const Pass& pass, TensorView sum, TensorView out) {
  if (out.dtype != DType::kF32) ops::copy(pass.backend, sum, out);
}

// Zeros [rows, cols] f32 of the scratch.
inline TensorView zeros(const Pass& pass, const Shape& shape) {
  const TensorView y = pass.take(DType::kF32, shape);
  ops::fill_zero(pass.backend, y);
  return y;
}

// Every stream of x [T, n D] becomes rows [T, D].
inline void copy_to_streams(const Pass& pass, TensorView rows, TensorView x) {
  for (int64_t column = 0; column < x.cols(); column += rows.cols())
    ops::copy(pass.backend, rows, x.slice_cols(column, column + rows.cols()));
}

// The backward of that: the streams of d [T, n D] in their order, summed into zeros [T, width] f32
// of the scratch.
inline TensorView sum_streams(const Pass& pass, TensorView d, int64_t width) {
  const TensorView sum = zeros(pass, {d.rows(), width});
  for (int64_t column = 0; column < d.cols(); column += width)
    ops::add_into(pass.backend, d.slice_cols(column, column + width), sum);
  return sum;
}

}  // namespace strata::model
