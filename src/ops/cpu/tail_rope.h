// SPDX-License-Identifier: Apache-2.0
// Kernels of ops/tail_rope.h for one path: rows, which are heads of tokens, one behind the other.
#pragma once
#include "ops/cpu/simd.h"
#include "ops/tail_rope.h"

namespace strata {
class CpuBackend;
}

namespace strata::ops::cpu {

// The CPU behind ops/tail_rope.h: arguments are checked.
void tail_rope(CpuBackend& backend, const TailRopeArgs& args, TensorView y);
void tail_rope_backward(CpuBackend& backend, const TailRopeArgs& args, TensorView d_y,
                        TensorView d_x, TensorView d_weight);

struct TailRopeKernel {
  const void* x;  // [T N, H]
  DType x_type;
  int64_t num_heads;
  int64_t width;    // H
  int64_t rotated;  // R
  bool norm;
  const float* weight;  // [H], or null
  float eps;
  const int32_t* positions;
  const float* cos;
  const float* sin;
  int64_t table_stride;
  bool inverse;
};

template <typename V>
void tail_rope_rows(const TailRopeKernel& k, DType y_type, void* y, int64_t begin, int64_t end);

// row: H floats of one worker.
template <typename V>
void tail_rope_backward_rows(const TailRopeKernel& k, DType d_y_type, const void* d_y,
                             DType d_x_type, void* d_x, float* row, int64_t begin, int64_t end);

// Columns [begin, end) of d_weight, begin even, over all rows. inv_rms [rows].
template <typename V>
void add_tail_rope_d_weight(const TailRopeKernel& k, DType d_y_type, const void* d_y,
                            const float* inv_rms, int64_t num_rows, float* d_weight, int64_t begin,
                            int64_t end);

template <typename V>
void compute_tail_inv_rms_rows(const TailRopeKernel& k, float* inv_rms, int64_t begin, int64_t end);

}  // namespace strata::ops::cpu
