// SPDX-License-Identifier: Apache-2.0
// Kernels of ops/gated_norm.h for one path; rows [begin, end) of the flattened [T N, D], or columns
// of D.
#pragma once
#include "ops/cpu/simd.h"

namespace strata {
class CpuBackend;
struct TensorView;
namespace ops {
struct GatedNormArgs;
}  // namespace ops
}  // namespace strata

namespace strata::ops::cpu {

// The CPU behind ops/gated_norm.h: arguments are checked.
void gated_norm(CpuBackend& backend, const GatedNormArgs& args, TensorView y);
void gated_norm_backward(CpuBackend& backend, const GatedNormArgs& args, TensorView d_y,
                         TensorView d_x, TensorView d_z, TensorView d_weight);

// [T, N, D]; strides in elements.
struct HeadRows {
  void* data;
  int64_t token_stride;
  int64_t head_stride;
};

struct GatedNormKernel {
  HeadRows x;
  HeadRows z;
  DType type;           // of x, z and what is written
  const float* weight;  // [D]
  float eps;
  int64_t num_heads;  // N
  int64_t num_rows;   // T N
  int64_t dim;        // D
};

template <typename V>
void gated_norm_rows(const GatedNormKernel& k, const HeadRows& y, int64_t begin, int64_t end);

template <typename V>
void compute_gated_inv_rms_rows(const GatedNormKernel& k, float* inv_rms, int64_t begin,
                                int64_t end);

template <typename V>
void gated_norm_backward_rows(const GatedNormKernel& k, const HeadRows& d_y, DType d_y_type,
                              const HeadRows& d_x, const HeadRows& d_z, int64_t begin, int64_t end);

// d_weight[begin, end) over all rows; inv_rms [T N].
template <typename V>
void add_gated_norm_d_weight(const GatedNormKernel& k, const float* inv_rms, const HeadRows& d_y,
                             DType d_y_type, float* d_weight, int64_t begin, int64_t end);

}  // namespace strata::ops::cpu
