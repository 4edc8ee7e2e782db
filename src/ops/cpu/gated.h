// SPDX-License-Identifier: Apache-2.0
// Kernels of ops/gated.h for one path: n neighbouring elements.
#pragma once
#include "ops/cpu/simd.h"
#include "ops/gated.h"

namespace strata {
class CpuBackend;
}

namespace strata::ops::cpu {

// The CPU behind ops/gated.h: arguments are checked.
void act_and_mul(CpuBackend& backend, Activation activation, TensorView gate, TensorView up,
                 TensorView y);
void act_and_mul_backward(CpuBackend& backend, Activation activation, TensorView gate,
                          TensorView up, TensorView d_y, TensorView d_gate, TensorView d_up);
void scaled_act_and_mul(CpuBackend& backend, Activation activation, TensorView gate, TensorView up,
                        TensorView scales, TensorView y);
void scaled_act_and_mul_backward(CpuBackend& backend, Activation activation, TensorView gate,
                                 TensorView up, TensorView scales, TensorView d_y,
                                 TensorView d_gate, TensorView d_up, TensorView d_scales);

struct GatedInputs {
  Activation activation;
  DType type;  // of gate, up and what is written
  const void* gate;
  const void* up;
  float scale;
};

template <typename V>
void act_and_mul_piece(const GatedInputs& in, void* y, int64_t n);

template <typename V>
void act_and_mul_backward_piece(const GatedInputs& in, DType d_y_type, const void* d_y,
                                void* d_gate, void* d_up, int64_t n);

// sum of d_y act(gate) up: sixteen interleaved partial sums, then their tree.
template <typename V>
float act_and_mul_dot_piece(const GatedInputs& in, DType d_y_type, const void* d_y, int64_t n);

}  // namespace strata::ops::cpu
