// SPDX-License-Identifier: Apache-2.0
// A linear projection with the batch's adapters: y = x W^T + scale_a (x A_a^T) B_a^T + bias for
// rows of adapter a. T tokens, N outputs, K inputs, R largest rank in the batch. h = round(scale *
// x A^T) continues the base product's accumulator. Engine thread only.
#pragma once
#include "model/blocks/block.h"
#include "model/pass/pass.h"

namespace strata::model {

struct LinearWeights {
  PanelView weight;                          // [N, K]
  TensorView bias;                           // [N] f32 or empty
  size_t weight_index = ModelWeights::npos;  // in the weight table
  size_t bias_index = ModelWeights::npos;
  int64_t layer = -1;
  int target = -1;                // among the layer's adapter targets
  const ParamRow* row = nullptr;  // of tensor ranks: how they divide it; null: it is whole
};

// The projection of a block's matrix `key`.
LinearWeights linear_of(const Pass& pass, const BlockContext& context, int key);

// Memory for h of one projection, [T, R] of the compute type: what a block saves of its adapters.
// Empty when no row of the batch has the module.
TensorView allocate_lora_h(const Pass& pass, const BlockContext& context, int key);

constexpr ScratchTag kLoraTag = "lora_h";

// Floating-point work of a projection of all rows of the pass, and of its adapters' first products:
// what activations cost to recompute.
double linear_flops(const Pass& pass, const BlockContext& context, int key);
double lora_flops(const Pass& pass, const BlockContext& context, int key, int64_t rank);

// Writes y [T, N]: of tensor ranks this one's outputs or, of a matrix whose inputs are gathered (x
// has this rank's), those of all. `add` [T, N] is added last, or empty. h [T, R] of the compute
// type is written for rows that have the module (backward needs it); with an empty h, scratch is
// used. With an empty y only h is made (recompute).
void linear_forward(Pass& pass, const RowGroups& rows, const LinearWeights& linear, TensorView x,
                    TensorView add, TensorView h, TensorView y);

// dy [T, N] of the compute type. Writes (or with accumulate adds to) dx [T, K] unless empty;
// accumulates the gradients that the pass asks for. d_weight: where the base weight's gradient
// goes, or empty.
void linear_backward(Pass& pass, const RowGroups& rows, const LinearWeights& linear, TensorView x,
                     TensorView h, TensorView dy, TensorView dx, bool accumulate,
                     TensorView d_weight);

// Forward and backward of a block's matrix `key` for the pass's rows; the base weight's gradient
// goes where the pass says.
void linear_forward(Pass& pass, const BlockContext& context, int key, TensorView x, TensorView add,
                    TensorView h, TensorView y);
void linear_backward(Pass& pass, const BlockContext& context, int key, TensorView x, TensorView h,
                     TensorView dy, TensorView dx, bool accumulate);

// Calls body(run, module) for the runs of rows whose adapter has the module of a block's matrix.
template <typename Body>
void for_each_module(const Pass& pass, const BlockContext& context, int key, Body&& body) {
  pass.rows.for_each_module(context.layer, context.param(key).target, body);
}

// Largest rank among the batch's adapters for this target and layer; 0 when no row has the module.
int64_t largest_rank(const RowGroups& rows, int64_t layer, int target);

}  // namespace strata::model
