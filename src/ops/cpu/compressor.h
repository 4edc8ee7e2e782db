// SPDX-License-Identifier: Apache-2.0
// Kernels of ops/compressor.h for one path: channels [begin, end) of the entries of all segments.
#pragma once
#include "ops/compressor.h"
#include "ops/cpu/simd.h"

namespace strata {
class CpuBackend;
}

namespace strata::ops::cpu {

// The CPU behind ops/compressor.h: arguments are checked.
void compress(CpuBackend& backend, const CompressorArgs& args, TensorView entries);
void compress_backward(CpuBackend& backend, const CompressorArgs& args, TensorView d_entries,
                       TensorView d_kv, TensorView d_gate, TensorView d_bias);

constexpr int64_t kCompressBlock = 64;  // channels of a piece of work; a multiple of kLanes

struct CompressorKernel {
  const float* kv;
  const float* gate;
  int64_t row_stride;  // of both
  const float* bias;   // [m, W]
  int64_t ratio;
  int64_t width;     // W
  int64_t channels;  // C
  bool overlap;
  const StateSegment* segments;
  int64_t num_segments;
};

template <typename V>
void compress_block(const CompressorKernel& k, float* entries, int64_t begin, int64_t end);

struct CompressorGradients {
  const float* d_entries;  // [E, C]
  DType type;              // of d_kv and d_gate
  void* d_kv;              // [T, W], zeros on entry
  void* d_gate;
  float* d_bias;  // [m, W], or null
};

template <typename V>
void compress_backward_block(const CompressorKernel& k, const CompressorGradients& g, int64_t begin,
                             int64_t end);

}  // namespace strata::ops::cpu
