// SPDX-License-Identifier: Apache-2.0
// The products of a layer's routed experts, with the batch's adapters: y = x W_e^T + scale (x
// A_e^T) B_e^T for the rows of expert e. n rows, N outputs, K inputs, R rank. gate and up may share
// one A (PEFT's target_parameters form, kMoeGateUp). Order of summation as in model/linear.h.
// Engine thread only.
#pragma once
#include <array>

#include "model/blocks/experts/moe.h"
#include "model/pass/pass.h"
#include "ops/gemm_groups.h"

namespace strata::model {

// h [n, R] of gate, up, down and of gate and up together; empty where no row has the module.
struct ExpertLoraH {
  std::array<TensorView, 4> h;
  [[nodiscard]] TensorView of(MoeKey key) const { return h[static_cast<size_t>(key - kMoeGate)]; }
  [[nodiscard]] ExpertLoraH first_rows(int64_t count) const;
};

// The biases of a matrix of all experts, [N] each, and their gradients; empty where they have none,
// or where none are wanted.
ops::TensorStack expert_biases(const BlockContext& context, MoeKey key);
ops::TensorStack expert_bias_gradients(const Pass& pass, const BlockContext& context,
                                       const ops::GroupedRows& rows, MoeKey key);

// For the most rows that there may be.
ExpertLoraH allocate_expert_lora_h(Pass& pass, const BlockContext& context);

// Writes y [n, N] and the h of matrix `key`; with an empty y only h. gate comes before up. Biases
// of gate and up are part of y, those of down are not: they are no part of what weights multiply.
void expert_linear_forward(Pass& pass, const BlockContext& context, const ops::GroupedRows& rows,
                           MoeKey key, const ExpertLoraH& lora_h, TensorView x, TensorView y);

// dy [n, N] of the compute type; writes d_x [n, K] and accumulates the gradients that the pass asks
// for; those of the experts' base parameters lie at equal distances. down projection.
void expert_down_backward(Pass& pass, const BlockContext& context, const ops::GroupedRows& rows,
                          const ExpertLoraH& lora_h, TensorView x, TensorView dy, TensorView d_x);

// The backward of gate and up together; writes d_x [n, K] f32, the sum of both.
void expert_gate_up_backward(Pass& pass, const BlockContext& context, const ops::GroupedRows& rows,
                             const ExpertLoraH& lora_h, TensorView x, TensorView d_gate,
                             TensorView d_up, TensorView d_x);

}  // namespace strata::model
