// SPDX-License-Identifier: Apache-2.0
// A projection that is G of them side by side (DeepSeek-V4's o_a_proj): group g of a row's inputs
// goes through rows g of the weight. With an adapter (W + s B A) all groups share A, and the rows
// of B belong to groups as those of the weight do: y_g = x_g W_g^T + (s x_g A^T) B_g^T, the
// low-rank term continuing the accumulator. T tokens, G groups, K inputs and O outputs of a group,
// R rank. Source: HF modeling_deepseek_v4.py, DeepseekV4GroupedLinear. Engine thread only.
#pragma once
#include "model/blocks/block.h"
#include "model/pass/pass.h"

namespace strata::model {

struct GroupedLinear {
  int key = 0;             // of a parameter [G O, K] with row blocks of O
  int64_t num_groups = 0;  // G
};

// x [T, G K], y [T, G O], of the compute type.
void grouped_linear_forward(Pass& pass, const BlockContext& context, const GroupedLinear& grouped,
                            TensorView x, TensorView y);

// dy [T, G O] of the compute type. Writes dx [T, G K] of the compute type and accumulates the
// gradients that the pass asks for. A's sums run sequence by sequence, of each over groups and then
// tokens ascending.
void grouped_linear_backward(Pass& pass, const BlockContext& context, const GroupedLinear& grouped,
                             TensorView x, TensorView dy, TensorView dx);

}  // namespace strata::model
