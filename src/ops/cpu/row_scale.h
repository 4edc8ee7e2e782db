// SPDX-License-Identifier: Apache-2.0
// The CPU's part of ops/row_scale.h.
#pragma once
#include "ops/cpu/cpu_backend.h"
#include "tensor/view.h"

namespace strata::ops::cpu {

void scale_rows(CpuBackend& backend, TensorView x, TensorView scales, TensorView y);
void scale_rows_backward(CpuBackend& backend, TensorView x, TensorView scales, TensorView d_y,
                         TensorView d_x, TensorView d_scales);

// d_y . x of n elements (row_scale_impl.cc), V a path's vector type.
template <typename V>
float row_dot_piece(DType x_type, const void* x, const float* d_y, int64_t n);

}  // namespace strata::ops::cpu
