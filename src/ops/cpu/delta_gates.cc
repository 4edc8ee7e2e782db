// SPDX-License-Identifier: Apache-2.0
#include "ops/cpu/delta_gates.h"

#include "ops/cpu/dispatch.h"
#include "ops/delta_gates.h"

namespace strata::ops::cpu {
namespace {

DeltaGatesKernel kernel_args_of(const DeltaGatesArgs& args) {
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

void delta_gates(CpuBackend& backend, const DeltaGatesArgs& args, TensorView log_decay,
                 TensorView beta) {
  const HostAccess access(backend.allocator());
  const DeltaGatesKernel kernel = kernel_args_of(args);
  with_path(backend.path(), [&]<typename V>() {
    parallel_for_columns(backend, args.a.shape[0], args.a.shape[1],
                         [&](int64_t begin, int64_t end) {
                           delta_gates_columns<V>(kernel, log_decay.f32(), log_decay.row_stride,
                                                  beta.f32(), beta.row_stride, begin, end);
                         });
  });
}

void delta_gates_backward(CpuBackend& backend, const DeltaGatesArgs& args, TensorView d_log_decay,
                          TensorView d_beta, TensorView d_a, TensorView d_b, TensorView d_a_log,
                          TensorView d_dt_bias) {
  const HostAccess access(backend.allocator());
  const DeltaGatesKernel kernel = kernel_args_of(args);
  const DeltaGatesGradients grads = {.d_log_decay = d_log_decay.f32(),
                                     .d_log_decay_stride = d_log_decay.row_stride,
                                     .d_beta = d_beta.f32(),
                                     .d_beta_stride = d_beta.row_stride,
                                     .d_a = d_a.data,
                                     .d_a_stride = d_a.row_stride,
                                     .d_b = d_b.data,
                                     .d_b_stride = d_b.row_stride,
                                     .d_a_log = d_a_log.empty() ? nullptr : d_a_log.f32(),
                                     .d_dt_bias = d_dt_bias.empty() ? nullptr : d_dt_bias.f32()};
  with_path(backend.path(), [&]<typename V>() {
    parallel_for_columns(backend, args.a.shape[0], args.a.shape[1],
                         [&](int64_t begin, int64_t end) {
                           delta_gates_backward_columns<V>(kernel, grads, begin, end);
                         });
  });
}

}  // namespace strata::ops::cpu
