// SPDX-License-Identifier: Apache-2.0
// Kernels of ops/group_bias.h for one path: one row, or some columns of it.
#pragma once
#include "ops/cpu/simd.h"
#include "ops/group_bias.h"

namespace strata {
class CpuBackend;
}

namespace strata::ops::cpu {

// The CPU behind ops/group_bias.h: arguments are checked.
void add_group_bias(CpuBackend& backend, const GroupedRows& rows, TensorStack bias,
                    TensorView scales, TensorView y);
void group_bias_backward(CpuBackend& backend, const GroupedRows& rows,
                         const GroupBiasGradients& grads, TensorView d_y);

// y += factor x, of n elements; x f32 or bf16.
template <typename V>
void add_scaled_row(DType x_type, const void* x, float factor, float* y, int64_t n);

// x . y of n elements.
template <typename V>
float dot_rows(DType x_type, const void* x, const float* y, int64_t n);

}  // namespace strata::ops::cpu
