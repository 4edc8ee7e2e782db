// SPDX-License-Identifier: Apache-2.0
#include "ops/gated.h"

#include "ops/checks.h"
#include "ops/rows.h"

namespace strata::ops {
namespace {

void check_like(TensorView view, TensorView gate) {
  CHECK(view.dtype == gate.dtype && view.shape == gate.shape, view.dtype, gate.dtype,
        view.shape.to_string(), gate.shape.to_string());
}

void check_scales(TensorView scales, TensorView gate) {
  CHECK(scales.dtype == DType::kF32 && scales.shape == Shape{gate.rows()}, scales.dtype,
        scales.shape.to_string(), gate.rows());
}

void check_backward(TensorView gate, TensorView up, TensorView d_y, TensorView d_gate,
                    TensorView d_up) {
  CHECK(is_float(gate.dtype) && is_float(d_y.dtype), gate.dtype, d_y.dtype);
  CHECK(d_y.shape == gate.shape, d_y.shape.to_string(), gate.shape.to_string());
  check_like(up, gate);
  check_like(d_gate, gate);
  check_like(d_up, gate);
}

}  // namespace

void act_and_mul(Backend& backend, Activation activation, TensorView gate, TensorView up,
                 TensorView y) {
  CHECK(is_float(gate.dtype), gate.dtype);
  check_like(up, gate);
  check_like(y, gate);
  backend.call()->gated.forward(backend, activation, gate, up, y);
}

void act_and_mul_backward(Backend& backend, Activation activation, TensorView gate, TensorView up,
                          TensorView d_y, TensorView d_gate, TensorView d_up) {
  check_backward(gate, up, d_y, d_gate, d_up);
  backend.call()->gated.backward(backend, activation, gate, up, d_y, d_gate, d_up);
}

void scaled_act_and_mul(Backend& backend, Activation activation, TensorView gate, TensorView up,
                        TensorView scales, TensorView y) {
  CHECK(is_float(gate.dtype), gate.dtype);
  check_like(up, gate);
  check_like(y, gate);
  check_scales(scales, gate);
  backend.call()->gated.rows_forward(backend, activation, gate, up, scales, y);
}

void scaled_act_and_mul_backward(Backend& backend, Activation activation, TensorView gate,
                                 TensorView up, TensorView scales, TensorView d_y,
                                 TensorView d_gate, TensorView d_up, TensorView d_scales) {
  check_backward(gate, up, d_y, d_gate, d_up);
  check_scales(scales, gate);
  check_scales(d_scales, gate);
  backend.call()->gated.rows_backward(backend, activation, gate, up, scales, d_y, d_gate, d_up,
                                      d_scales);
}

}  // namespace strata::ops
