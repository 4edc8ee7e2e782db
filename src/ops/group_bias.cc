// SPDX-License-Identifier: Apache-2.0
#include "ops/group_bias.h"

#include "ops/checks.h"
#include "ops/rows.h"

namespace strata::ops {
namespace {

void check_stack(const TensorStack& stack, const TensorView& y) {
  const TensorView& first = stack.first;
  CHECK(first.dtype == DType::kF32 && first.shape == Shape{y.cols()}, first.dtype,
        first.shape.to_string(), y.cols());
}

void check_factors(const TensorView& factors, const GroupedRows& rows) {
  CHECK(factors.dtype == DType::kF32 && factors.dense() && factors.shape == Shape{rows.num_rows},
        factors.dtype, factors.shape.to_string(), rows.num_rows);
}

}  // namespace

void add_group_bias(Backend& backend, const GroupedRows& rows, TensorStack bias, TensorView scales,
                    TensorView y) {
  check_stack(bias, y);
  check_factors(scales, rows);
  CHECK(y.dtype == DType::kF32 && y.rows() == rows.num_rows, y.dtype, y.rows(), rows.num_rows);
  if (rows.num_rows > 0) backend.call()->group_bias.forward(backend, rows, bias, scales, y);
}

void group_bias_backward(Backend& backend, const GroupedRows& rows, const GroupBiasGradients& grads,
                         TensorView d_y) {
  CHECK(is_float(d_y.dtype) && d_y.rows() == rows.num_rows, d_y.dtype, d_y.rows(), rows.num_rows);
  if (!grads.scales.empty()) check_factors(grads.scales, rows);
  if (!grads.d_scales.empty()) {
    check_factors(grads.d_scales, rows);
    check_stack(grads.bias, d_y);
  }
  if (!grads.d_bias.first.empty()) check_stack(grads.d_bias, d_y);
  if (rows.num_rows > 0) backend.call()->group_bias.backward(backend, rows, grads, d_y);
}

}  // namespace strata::ops
