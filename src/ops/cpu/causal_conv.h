// SPDX-License-Identifier: Apache-2.0
// Kernels of ops/causal_conv.h for one path: channels [begin, end) of C, at most kConvBlock, over
// all segments. A block of channels runs whole on one thread: its sums are chains over tokens.
#pragma once
#include "ops/causal_conv.h"
#include "ops/cpu/simd.h"

namespace strata {
class CpuBackend;
}

namespace strata::ops::cpu {

// The CPU behind ops/causal_conv.h: arguments are checked.
void causal_conv(CpuBackend& backend, const CausalConvArgs& args, TensorView y);
void causal_conv_backward(CpuBackend& backend, const CausalConvArgs& args, TensorView d_y,
                          TensorView d_x, TensorView d_weight, TensorView d_bias);

// A multiple of kLanes: so many that a row of the block is read ahead, so few that its taps and
// sums stay in the first cache.
constexpr int64_t kConvBlock = 512;

struct CausalConvKernel {
  const void* x;  // [T, C]
  DType x_type;
  int64_t x_stride;
  const float* weight;  // [C, K]
  const float* bias;    // [C], or null
  bool silu;
  int64_t num_channels;
  int64_t num_taps;
  const StateSegment* segments;
  int64_t num_segments;
};

// Writes y [T, C] of x's type, then the histories.
template <typename V>
void causal_conv_block(const CausalConvKernel& k, void* y, int64_t y_stride, int64_t begin,
                       int64_t end);

struct CausalConvGradients {
  const void* d_y;  // [T, C]
  DType d_y_type;
  int64_t d_y_stride;
  void* d_x;  // [T, C]
  DType d_x_type;
  int64_t d_x_stride;
  float* d_weight;  // [C, K], or null
  float* d_bias;    // [C], or null
};

template <typename V>
void causal_conv_backward_block(const CausalConvKernel& k, const CausalConvGradients& grads,
                                int64_t begin, int64_t end);

}  // namespace strata::ops::cpu
