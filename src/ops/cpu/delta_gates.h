// SPDX-License-Identifier: Apache-2.0
// Kernels of ops/delta_gates.h for one path: heads [begin, end) over all tokens.
#pragma once
#include "ops/cpu/simd.h"

namespace strata {
class CpuBackend;
struct TensorView;
namespace ops {
struct DeltaGatesArgs;
}  // namespace ops
}  // namespace strata

namespace strata::ops::cpu {

// The CPU behind ops/delta_gates.h: arguments are checked.
void delta_gates(CpuBackend& backend, const DeltaGatesArgs& args, TensorView log_decay,
                 TensorView beta);
void delta_gates_backward(CpuBackend& backend, const DeltaGatesArgs& args, TensorView d_log_decay,
                          TensorView d_beta, TensorView d_a, TensorView d_b, TensorView d_a_log,
                          TensorView d_dt_bias);

struct DeltaGatesKernel {
  const void* a;  // [T, H]
  int64_t a_stride;
  const void* b;  // [T, H]
  int64_t b_stride;
  DType type;            // of a and b
  const float* a_log;    // [H]
  const float* dt_bias;  // [H]
  int64_t num_tokens;
};

template <typename V>
void delta_gates_columns(const DeltaGatesKernel& k, float* log_decay, int64_t log_decay_stride,
                         float* beta, int64_t beta_stride, int64_t begin, int64_t end);

struct DeltaGatesGradients {
  const float* d_log_decay;  // [T, H]
  int64_t d_log_decay_stride;
  const float* d_beta;  // [T, H]
  int64_t d_beta_stride;
  void* d_a;  // [T, H]
  int64_t d_a_stride;
  void* d_b;  // [T, H]
  int64_t d_b_stride;
  float* d_a_log;    // [H], or null
  float* d_dt_bias;  // [H], or null
};

template <typename V>
void delta_gates_backward_columns(const DeltaGatesKernel& k, const DeltaGatesGradients& grads,
                                  int64_t begin, int64_t end);

}  // namespace strata::ops::cpu
