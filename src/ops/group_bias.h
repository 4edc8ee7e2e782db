// SPDX-License-Identifier: Apache-2.0
// Biases of ragged groups of rows (a bias for each expert), where the rows count by a factor of
// their own (the router's weight). n rows, N outputs, E groups; rows as in ops/gemm_groups.h. A
// row's result depends on the row and its group's bias alone. Engine thread only.
#pragma once
#include "backend/backend.h"
#include "ops/gemm_groups.h"
#include "tensor/view.h"

namespace strata::ops {

// y[r] += scales[r] bias[group of r], an fma an element. y [n, N], scales [n], bias [E] of [N]:
// f32.
void add_group_bias(Backend& backend, const GroupedRows& rows, TensorStack bias, TensorView scales,
                    TensorView y);

// What add_group_bias was given, and what it leaves; empty: not wanted.
struct GroupBiasGradients {
  TensorStack bias = {};     // [E] of [N] f32; only where d_scales is wanted
  TensorView scales = {};    // [n] f32; empty: ones
  TensorView d_scales = {};  // [n] f32
  TensorStack d_bias = {};   // [E] of [N] f32
};

// From d_y [n, N], f32 or bf16: d_scales[r] += d_y[r] . bias[group of r], sixteen interleaved
// partial sums and then their tree; d_bias[g] += sum over the group's rows, ascending, of scales[r]
// d_y[r], a chain of fma from the stored value.
void group_bias_backward(Backend& backend, const GroupedRows& rows, const GroupBiasGradients& grads,
                         TensorView d_y);

}  // namespace strata::ops
