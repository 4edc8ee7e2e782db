// SPDX-License-Identifier: Apache-2.0
#include "ops/delta_gates.h"

#include "ops/checks.h"
#include "ops/rows.h"

namespace strata::ops {
namespace {

void check_heads(TensorView view, const DeltaGatesArgs& args) {
  CHECK(view.dtype == DType::kF32 && view.shape == Shape{args.a.shape[1]}, view.dtype,
        view.shape.to_string(), args.a.shape.to_string());
}

void check_like(TensorView view, DType dtype, const DeltaGatesArgs& args) {
  CHECK(view.dtype == dtype && view.shape == args.a.shape, view.dtype, dtype,
        view.shape.to_string(), args.a.shape.to_string());
}

void check_args(const DeltaGatesArgs& args) {
  CHECK(is_float(args.a.dtype) && args.a.shape.rank() == 2, args.a.dtype, args.a.shape.to_string());
  check_like(args.b, args.a.dtype, args);
  check_heads(args.a_log, args);
  check_heads(args.dt_bias, args);
}

}  // namespace

void delta_gates(Backend& backend, const DeltaGatesArgs& args, TensorView log_decay,
                 TensorView beta) {
  check_args(args);
  check_like(log_decay, DType::kF32, args);
  check_like(beta, DType::kF32, args);
  backend.call()->delta_gates.forward(backend, args, log_decay, beta);
}

void delta_gates_backward(Backend& backend, const DeltaGatesArgs& args, TensorView d_log_decay,
                          TensorView d_beta, TensorView d_a, TensorView d_b, TensorView d_a_log,
                          TensorView d_dt_bias) {
  check_args(args);
  check_like(d_log_decay, DType::kF32, args);
  check_like(d_beta, DType::kF32, args);
  check_like(d_a, args.a.dtype, args);
  check_like(d_b, args.a.dtype, args);
  if (!d_a_log.empty()) check_heads(d_a_log, args);
  if (!d_dt_bias.empty()) check_heads(d_dt_bias, args);
  backend.call()->delta_gates.backward(backend, args, d_log_decay, d_beta, d_a, d_b, d_a_log,
                                       d_dt_bias);
}

}  // namespace strata::ops
