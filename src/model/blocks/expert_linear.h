// The products of a layer's routed experts, with the batch's adapters: y = x W_e^T + scale (x
// A_e^T) B_e^T for the rows of expert e. n rows, N outputs, K inputs, R rank. gate and up may share
// one A (PEFT's target_parameters form, Projection::kExpertGateUp). Order of summation as in
// model/linear.h. Engine thread only.
#pragma once
#include "model/decoder_layer.h"

namespace strata::model {

// Writes y [n, N] and acts.lora_h of the projection; with an empty y only lora_h. gate comes before
// up.
void expert_forward(Pass& pass, int64_t layer, Projection projection, const LayerActivations& acts,
                    TensorView x, TensorView y);

// dy [n, N] of the compute type; writes d_x [n, K] and accumulates the gradients that the pass asks
// for. down projection.
void expert_down_backward(Pass& pass, int64_t layer, const LayerActivations& acts, TensorView x,
                          TensorView dy, TensorView d_x);

// The same of gate and up together; writes d_x [n, K] f32, the sum of both.
void expert_gate_up_backward(Pass& pass, int64_t layer, const LayerActivations& acts, TensorView x,
                             TensorView d_gate, TensorView d_up, TensorView d_x);

}  // namespace strata::model
