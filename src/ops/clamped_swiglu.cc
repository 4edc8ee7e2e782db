// SPDX-License-Identifier: Apache-2.0
#include "ops/clamped_swiglu.h"

#include "ops/checks.h"
#include "ops/rows.h"

namespace strata::ops {
namespace {

void check_like(TensorView view, TensorView gate) {
  CHECK(view.dtype == gate.dtype && view.shape == gate.shape, view.dtype, gate.dtype,
        view.shape.to_string(), gate.shape.to_string());
}

void check_inputs(const SwigluForm& form, TensorView gate, TensorView up, TensorView scales) {
  CHECK(is_float(gate.dtype), gate.dtype);
  CHECK(form.limit > 0.0f, form.limit);
  check_like(up, gate);
  CHECK(scales.empty() || (scales.dtype == DType::kF32 && scales.shape == Shape{gate.rows()}),
        scales.dtype, scales.shape.to_string(), gate.rows());
}

}  // namespace

void clamped_swiglu(Backend& backend, const SwigluForm& form, TensorView gate, TensorView up,
                    TensorView scales, TensorView y) {
  check_inputs(form, gate, up, scales);
  check_like(y, gate);
  backend.call()->clamped_swiglu.forward(backend, form, gate, up, scales, y);
}

void clamped_swiglu_backward(Backend& backend, const SwigluForm& form, TensorView gate,
                             TensorView up, TensorView scales, TensorView d_y, TensorView d_gate,
                             TensorView d_up, TensorView d_scales) {
  check_inputs(form, gate, up, scales);
  CHECK(is_float(d_y.dtype) && d_y.shape == gate.shape, d_y.dtype, d_y.shape.to_string());
  check_like(d_gate, gate);
  check_like(d_up, gate);
  CHECK(d_scales.empty() == scales.empty());
  CHECK(d_scales.empty() || (d_scales.dtype == DType::kF32 && d_scales.shape == scales.shape),
        d_scales.dtype, d_scales.shape.to_string());
  backend.call()->clamped_swiglu.backward(backend, form, gate, up, scales, d_y, d_gate, d_up,
                                          d_scales);
}

}  // namespace strata::ops
