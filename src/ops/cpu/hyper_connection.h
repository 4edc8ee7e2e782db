// SPDX-License-Identifier: Apache-2.0
// Kernels of ops/hyper_connection.h for one path: some tokens, or some columns of fn's gradient.
#pragma once
#include "ops/cpu/simd.h"
#include "ops/hyper_connection.h"

namespace strata {
class CpuBackend;
}

namespace strata::ops::cpu {

// The CPU behind ops/hyper_connection.h: arguments are checked.
void hyper_mix(CpuBackend& backend, TensorView streams, TensorView fn, float norm_eps,
               TensorView mix, TensorView inv_rms);
void hyper_mix_backward(CpuBackend& backend, TensorView streams, TensorView fn, TensorView mix,
                        TensorView inv_rms, TensorView d_mix, TensorView d_streams,
                        TensorView d_fn);
void hyper_weights(CpuBackend& backend, const HyperWeightsArgs& args, TensorView weights);
void hyper_weights_backward(CpuBackend& backend, const HyperWeightsArgs& args, TensorView d_weights,
                            TensorView d_mix, TensorView d_base, TensorView d_scale);
void hyper_collapse(CpuBackend& backend, TensorView streams, TensorView weights, TensorView y);
void hyper_collapse_backward(CpuBackend& backend, TensorView streams, TensorView weights,
                             TensorView d_y, TensorView d_streams, TensorView d_weights);
void hyper_expand(CpuBackend& backend, TensorView streams, TensorView out, TensorView weights,
                  TensorView y);
void hyper_expand_backward(CpuBackend& backend, TensorView streams, TensorView out,
                           TensorView weights, TensorView d, TensorView d_out,
                           TensorView d_weights);

// T tokens, S streams, D model width, R numbers a token. Everything is dense.
struct HyperKernel {
  int64_t num_streams;
  int64_t width;         // D
  int64_t row;           // S D
  int64_t numbers;       // R
  DType type;            // of streams
  const void* x;         // [T, S, D]
  const float* fn;       // [R, S D]
  const float* weights;  // [T, R]
};

template <typename V>
void hyper_mix_tokens(const HyperKernel& k, float norm_eps, float* mix, float* inv_rms,
                      int64_t begin, int64_t end);

struct HyperMixGradients {
  const float* mix;      // [T, R]
  const float* inv_rms;  // [T]
  const float* d_mix;    // [T, R]
};

template <typename V>
void hyper_mix_backward_tokens(const HyperKernel& k, const HyperMixGradients& g, float* d_x,
                               int64_t begin, int64_t end);

// Columns [begin, end) of d_fn, over all of num_tokens.
template <typename V>
void add_hyper_d_fn(const HyperKernel& k, const HyperMixGradients& g, int64_t num_tokens,
                    float* d_fn, int64_t begin, int64_t end);

template <typename V>
void hyper_collapse_tokens(const HyperKernel& k, float* y, int64_t begin, int64_t end);

template <typename V>
void hyper_collapse_backward_tokens(const HyperKernel& k, const float* d_y, float* d_x,
                                    float* d_weights, int64_t begin, int64_t end);

template <typename V>
void hyper_expand_tokens(const HyperKernel& k, DType out_type, const void* out, DType y_type,
                         void* y, int64_t begin, int64_t end);

template <typename V>
void hyper_expand_backward_tokens(const HyperKernel& k, DType out_type, const void* out, float* d,
                                  float* d_out, float* d_weights, int64_t begin, int64_t end);

}  // namespace strata::ops::cpu
