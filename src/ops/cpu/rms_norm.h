// SPDX-License-Identifier: Apache-2.0
// Kernels of ops/rms_norm.h for one path; rows [begin, end) of T, or columns of D.
#pragma once
#include "ops/cpu/simd.h"

namespace strata {
class CpuBackend;
struct TensorView;
namespace ops {
struct RmsNormArgs;
}  // namespace ops
}  // namespace strata

namespace strata::ops::cpu {

// The CPU behind ops/rms_norm.h: arguments are checked.
void rms_norm(CpuBackend& backend, const RmsNormArgs& args, TensorView y, TensorView inv_rms);
void rms_norm_backward(CpuBackend& backend, const RmsNormArgs& args, TensorView inv_rms,
                       TensorView d_y, TensorView d_x, TensorView d_weight);

struct RmsNormKernel {
  const void* x;  // [T, D]
  DType x_type;
  int64_t x_stride;
  const float* weight;  // [D]
  float eps;
  int64_t num_rows;
  int64_t dim;
};

// sum = offset + weight, n elements.
template <typename V>
void add_offset(const float* weight, float offset, float* sum, int64_t n);

template <typename V>
void rms_norm_rows(const RmsNormKernel& k, void* y, DType y_type, int64_t y_stride, float* inv_rms,
                   int64_t begin, int64_t end);

// inv_rms[t] alone.
template <typename V>
void compute_inv_rms_rows(const RmsNormKernel& k, float* inv_rms, int64_t begin, int64_t end);

template <typename V>
void rms_norm_backward_rows(const RmsNormKernel& k, const float* inv_rms, const float* d_y,
                            int64_t d_y_stride, float* d_x, int64_t d_x_stride, int64_t begin,
                            int64_t end);

// d_weight[begin, end) over all rows.
template <typename V>
void add_rms_norm_d_weight(const RmsNormKernel& k, const float* inv_rms, const float* d_y,
                           int64_t d_y_stride, float* d_weight, int64_t begin, int64_t end);

}  // namespace strata::ops::cpu
