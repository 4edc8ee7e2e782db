// Kernels of ops/swiglu.h for one path: n neighbouring elements.
#pragma once
#include "ops/cpu/simd.h"

namespace strata::ops::cpu {

template <typename V>
void swiglu_piece(DType type, const void* gate, const void* up, float scale, void* y, int64_t n);

template <typename V>
void swiglu_backward_piece(DType type, const void* gate, const void* up, float scale,
                           DType d_y_type, const void* d_y, void* d_gate, void* d_up, int64_t n);

// sum of d_y silu(gate) up: sixteen interleaved partial sums, then their tree.
template <typename V>
float swiglu_dot_piece(DType type, const void* gate, const void* up, DType d_y_type,
                       const void* d_y, int64_t n);

}  // namespace strata::ops::cpu
