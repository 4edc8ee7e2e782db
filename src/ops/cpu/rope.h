// SPDX-License-Identifier: Apache-2.0
// Kernels of ops/rope.h for one path; rows [begin, end) of the flattened [T N, H], or columns of H.
#pragma once
#include "ops/cpu/simd.h"
#include "ops/rope.h"

namespace strata {
class CpuBackend;
}

namespace strata::ops::cpu {

// The CPU behind ops/rope.h: arguments are checked.
void head_norm_rope(CpuBackend& backend, const HeadNormRopeArgs& args, TensorView y);
void head_norm_rope_backward(CpuBackend& backend, const HeadNormRopeArgs& args, TensorView d_y,
                             TensorView d_x, TensorView d_weight);

struct RopeKernel {
  const void* x;  // [T N, H]
  DType x_type;
  int64_t x_stride;
  const float* weight;  // [H], or null: no norm
  float eps;
  const int32_t* positions;  // [T]
  const float* cos;          // [P, R / 2]
  const float* sin;
  int64_t table_stride;
  int64_t num_heads;
  int64_t num_rows;    // T N
  int64_t dim;         // H
  int64_t rotary_dim;  // R
  bool interleaved;    // pairs (2h, 2h + 1) of x
};

template <typename V>
void head_norm_rope_rows(const RopeKernel& k, void* y, int64_t y_stride, int64_t begin,
                         int64_t end);

template <typename V>
void compute_head_inv_rms_rows(const RopeKernel& k, float* inv_rms, int64_t begin, int64_t end);

template <typename V>
void head_norm_rope_backward_rows(const RopeKernel& k, const void* d_y, DType d_y_type,
                                  int64_t d_y_stride, void* d_x, DType d_x_type, int64_t d_x_stride,
                                  int64_t begin, int64_t end);

// d_weight of the pairs (h, h + R / 2), h in [begin, end), over all rows.
template <typename V>
void add_head_norm_rope_d_weight(const RopeKernel& k, const float* inv_rms, const void* d_y,
                                 DType d_y_type, int64_t d_y_stride, float* d_weight, int64_t begin,
                                 int64_t end);

// d_weight of columns [begin, end), which are not turned, over all rows.
template <typename V>
void add_unrotated_d_weight(const RopeKernel& k, const float* inv_rms, const void* d_y,
                            DType d_y_type, int64_t d_y_stride, float* d_weight, int64_t begin,
                            int64_t end);

}  // namespace strata::ops::cpu
