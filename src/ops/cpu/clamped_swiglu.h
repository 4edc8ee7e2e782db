// SPDX-License-Identifier: Apache-2.0
// Kernels of ops/clamped_swiglu.h for one path: one row of n elements.
#pragma once
#include "ops/clamped_swiglu.h"
#include "ops/cpu/simd.h"

namespace strata {
class CpuBackend;
}

namespace strata::ops::cpu {

// The CPU behind ops/clamped_swiglu.h: arguments are checked.
void clamped_swiglu(CpuBackend& backend, const SwigluForm& form, TensorView gate, TensorView up,
                    TensorView scales, TensorView y);
void clamped_swiglu_backward(CpuBackend& backend, const SwigluForm& form, TensorView gate,
                             TensorView up, TensorView scales, TensorView d_y, TensorView d_gate,
                             TensorView d_up, TensorView d_scales);

struct ClampedInputs {
  DType type;  // of gate, up and what is written
  const void* gate;
  const void* up;
  SwigluForm form;
  float scale;
};

template <typename V>
void clamped_swiglu_row(const ClampedInputs& in, void* y, int64_t n);

// Returns the gradient of the scale.
template <typename V>
float clamped_swiglu_backward_row(const ClampedInputs& in, DType d_y_type, const void* d_y,
                                  void* d_gate, void* d_up, int64_t n);

}  // namespace strata::ops::cpu
