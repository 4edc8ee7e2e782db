// SPDX-License-Identifier: Apache-2.0
// Manifold-constrained hyper-connections (DeepSeek-V4): a residual of S streams, from which a
// sublayer's input is collapsed and into which its output is expanded, by weights that the streams
// themselves give. T tokens, S streams, D model width, R numbers a token: S for the input (pre),
// then where there is an output S for it (post) and S x S for the streams (comb).
//   mix = fn x / sqrt(mean(x^2) + norm_eps), x the token's streams one behind the other
//   pre = sigmoid(scale0 mix + base) + eps, post = 2 sigmoid(scale1 mix + base)
//   comb = Sinkhorn(softmax over the last index of (scale2 mix + base) + eps): columns (sums over
//          the first index) are divided by their sum + eps, then `steps` - 1 times rows and columns
//   collapsed = sum_i pre_i x_i,  x'_j = post_j out + sum_i comb_ij x_i
// Source: HF modeling_deepseek_v4.py, DeepseekV4HyperConnection and DeepseekV4HyperHead.
// fp32, but for what is made of mix: that is computed in double and rounded once, backward too, so
// that Sinkhorn's chain of quotients neither overflows nor loses gradients of any size. Sums over a
// token's elements: 16 interleaved partial sums and one tree. Engine thread only.
#pragma once
#include "backend/backend.h"
#include "tensor/view.h"

namespace strata::ops {

constexpr int64_t kMaxStreams = 8;
constexpr int kMaxSinkhornSteps = 64;

// Writes mix [T, R] f32 and inv_rms [T] f32. streams [T, S D] f32 or bf16, fn [R, S D] f32; dense.
void hyper_mix(Backend& backend, TensorView streams, TensorView fn, float norm_eps, TensorView mix,
               TensorView inv_rms);

// Adds to d_streams [T, S D] f32. Adds to d_fn [R, S D] f32 unless it is empty: one chain over
// ascending tokens from the stored value.
void hyper_mix_backward(Backend& backend, TensorView streams, TensorView fn, TensorView mix,
                        TensorView inv_rms, TensorView d_mix, TensorView d_streams,
                        TensorView d_fn);

struct HyperWeightsArgs {
  TensorView mix;    // [T, R] f32
  TensorView base;   // [R] f32
  TensorView scale;  // [3] f32; [1] where R = S
  int64_t num_streams = 0;
  double eps = 1e-6;
  int steps = 1;  // of Sinkhorn

  [[nodiscard]] bool has_output() const { return mix.cols() != num_streams; }
};

// Writes weights [T, R] f32: pre, post, comb row by row.
void hyper_weights(Backend& backend, const HyperWeightsArgs& args, TensorView weights);

// Writes d_mix [T, R] f32 from d_weights [T, R] f32. Adds to d_base [R] and d_scale [3 or 1] f32,
// each unless it is empty: chains over ascending tokens.
void hyper_weights_backward(Backend& backend, const HyperWeightsArgs& args, TensorView d_weights,
                            TensorView d_mix, TensorView d_base, TensorView d_scale);

// Writes y [T, D] f32 = sum_i pre_i x_i, i ascending. streams [T, S, D] f32 or bf16, dense.
void hyper_collapse(Backend& backend, TensorView streams, TensorView weights, TensorView y);

// Adds pre_i d_y to d_streams [T, S, D] f32 and writes the pre part of d_weights [T, R]. d_y [T, D]
// f32.
void hyper_collapse_backward(Backend& backend, TensorView streams, TensorView weights,
                             TensorView d_y, TensorView d_streams, TensorView d_weights);

// Writes y [T, S, D] f32 or bf16: y_j = post_j out + comb_0j x_0 + ..., one chain, rounded once.
// out [T, D] f32 or bf16. y may lie over streams of its type.
void hyper_expand(Backend& backend, TensorView streams, TensorView out, TensorView weights,
                  TensorView y);

// d [T, S, D] f32: the gradient of y on entry, of streams on return. Writes d_out [T, D] f32 and
// the post and comb parts of d_weights [T, R].
void hyper_expand_backward(Backend& backend, TensorView streams, TensorView out, TensorView weights,
                           TensorView d, TensorView d_out, TensorView d_weights);

}  // namespace strata::ops
