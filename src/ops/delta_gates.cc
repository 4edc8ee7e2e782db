#include "ops/delta_gates.h"

#include "ops/cpu/delta_gates.h"
#include "ops/cpu/dispatch.h"

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

cpu::DeltaGatesKernel checked(const DeltaGatesArgs& args) {
  CHECK(cpu::is_float(args.a.dtype) && args.a.shape.rank() == 2, args.a.dtype,
        args.a.shape.to_string());
  check_like(args.b, args.a.dtype, args);
  check_heads(args.a_log, args);
  check_heads(args.dt_bias, args);
  return {.a = args.a.data,
          .a_stride = args.a.row_stride,
          .b = args.b.data,
          .b_stride = args.b.row_stride,
          .type = args.a.dtype,
          .a_log = args.a_log.f32(),
          .dt_bias = args.dt_bias.f32(),
          .num_tokens = args.a.shape[0]};
}

}  // namespace

void delta_gates(Backend& backend, const DeltaGatesArgs& args, TensorView log_decay,
                 TensorView beta) {
  const cpu::DeltaGatesKernel kernel = checked(args);
  check_like(log_decay, DType::kF32, args);
  check_like(beta, DType::kF32, args);
  cpu::with_path(backend.path(), [&]<typename V>() {
    cpu::for_columns(backend, args.a.shape[0], args.a.shape[1], [&](int64_t begin, int64_t end) {
      cpu::delta_gates_columns<V>(kernel, log_decay.f32(), log_decay.row_stride, beta.f32(),
                                  beta.row_stride, begin, end);
    });
  });
}

void delta_gates_backward(Backend& backend, const DeltaGatesArgs& args, TensorView d_log_decay,
                          TensorView d_beta, TensorView d_a, TensorView d_b, TensorView d_a_log,
                          TensorView d_dt_bias) {
  const cpu::DeltaGatesKernel kernel = checked(args);
  check_like(d_log_decay, DType::kF32, args);
  check_like(d_beta, DType::kF32, args);
  check_like(d_a, args.a.dtype, args);
  check_like(d_b, args.a.dtype, args);
  if (!d_a_log.empty()) check_heads(d_a_log, args);
  if (!d_dt_bias.empty()) check_heads(d_dt_bias, args);
  const cpu::DeltaGatesGradients grads = {
      .d_log_decay = d_log_decay.f32(),
      .d_log_decay_stride = d_log_decay.row_stride,
      .d_beta = d_beta.f32(),
      .d_beta_stride = d_beta.row_stride,
      .d_a = d_a.data,
      .d_a_stride = d_a.row_stride,
      .d_b = d_b.data,
      .d_b_stride = d_b.row_stride,
      .d_a_log = d_a_log.empty() ? nullptr : d_a_log.f32(),
      .d_dt_bias = d_dt_bias.empty() ? nullptr : d_dt_bias.f32()};
  cpu::with_path(backend.path(), [&]<typename V>() {
    cpu::for_columns(backend, args.a.shape[0], args.a.shape[1], [&](int64_t begin, int64_t end) {
      cpu::delta_gates_backward_columns<V>(kernel, grads, begin, end);
    });
  });
}

}  // namespace strata::ops
