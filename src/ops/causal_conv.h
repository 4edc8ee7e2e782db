// SPDX-License-Identifier: Apache-2.0
// Depthwise causal convolution: y[t, c] = act(z), z = bias[c] + sum_i weight[c, i] x[t - K + 1 + i,
// c], with SiLU or nothing for act. Sources of the formula: HF modeling_qwen3_5.py (SiLU) and
// modeling_lfm2.py (none), causal_conv1d_fn.  T tokens, C channels, K taps. Arithmetic in fp32, one
// rounding. z is one fma chain over ascending taps from the bias or zero, an input at a position
// below 0 a zero in it: the bits are those of the sequence alone, in one pass, in any split into
// passes, or token by token. Engine thread only. Allocates nothing.
#pragma once
#include <span>

#include "backend/backend.h"
#include "ops/state_segment.h"
#include "tensor/view.h"

namespace strata::ops {

constexpr int64_t kMaxConvTaps = 8;

// A segment's state is [K - 1, C] of x's type, dense: the inputs before row `begin`, oldest first.
// The pass reads those at positions from 0 on and then writes the inputs before row `end`, zeros
// for positions below 0. Segments ascend.
struct CausalConvArgs {
  TensorView x;       // [T, C] f32 or bf16
  TensorView weight;  // [C, K] f32, dense, 1 <= K <= kMaxConvTaps
  std::span<const StateSegment> segments;
  TensorView bias = {};  // [C] f32, dense; empty: none
  bool silu = true;
};

// Writes y [T, C] of x's type, which may not lie over x.
void causal_conv(Backend& backend, const CausalConvArgs& args, TensorView y);

// Segments start at position 0 (training); their states are neither read nor written. z is made
// again. With g = d_y act'(z), fp32, writes d_x [T, C] f32 or bf16: one fma chain over the
// outputs t, t + 1, ... t + K - 1 from zero, g being zero beyond the segment's end. d_y [T, C] f32
// or bf16; d_x may lie over d_y or x when type and stride agree. Adds g x to d_weight [C, K] f32,
// dense, and g to d_bias [C] f32, dense, unless they are empty: a chain over ascending tokens from
// the stored value each.
void causal_conv_backward(Backend& backend, const CausalConvArgs& args, TensorView d_y,
                          TensorView d_x, TensorView d_weight, TensorView d_bias = {});

}  // namespace strata::ops
