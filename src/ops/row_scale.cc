// SPDX-License-Identifier: Apache-2.0
#include "ops/row_scale.h"

#include "ops/checks.h"
#include "ops/rows.h"

namespace strata::ops {
namespace {

void check_numbers(TensorView numbers, TensorView x) {
  CHECK(numbers.dtype == DType::kF32 && numbers.shape == Shape{x.rows()}, numbers.dtype,
        numbers.shape.to_string(), x.rows());
}

}  // namespace

void scale_rows(Backend& backend, TensorView x, TensorView scales, TensorView y) {
  CHECK(is_float(x.dtype) && x.dtype == y.dtype && x.shape == y.shape, x.dtype, y.dtype,
        x.shape.to_string(), y.shape.to_string());
  check_numbers(scales, x);
  backend.call()->row_scale.forward(backend, x, scales, y);
}

void scale_rows_backward(Backend& backend, TensorView x, TensorView scales, TensorView d_y,
                         TensorView d_x, TensorView d_scales) {
  CHECK(is_float(x.dtype), x.dtype);
  for (const TensorView& d : {d_y, d_x}) {
    CHECK(d.dtype == DType::kF32 && d.shape == x.shape, d.dtype, d.shape.to_string(),
          x.shape.to_string());
  }
  check_numbers(scales, x);
  check_numbers(d_scales, x);
  backend.call()->row_scale.backward(backend, x, scales, d_y, d_x, d_scales);
}

}  // namespace strata::ops
