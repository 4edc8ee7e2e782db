// SPDX-License-Identifier: Apache-2.0
// Log-probabilities of targets from fp32 logits, and the gradient of the logits. C rows, V
// vocabulary. A row's maximum, its sum of exp (16 interleaved partial sums, one fixed tree, on
// every path) and so its lse depend on that row alone. exp and log are accurate to 2 ulp. Engine
// thread only.
#pragma once
#include <span>

#include "backend/backend.h"
#include "tensor/view.h"

namespace strata::ops {

// What a model makes of its head's product z before anything reads it: y = scale z, and with a cap
// y = cap tanh(scale z / cap), which no logit passes (Gemma 2). tanh is accurate to 3 ulp.
struct LogitMap {
  float scale = 1.0f;
  float cap = 0.0f;  // 0: none

  [[nodiscard]] bool is_identity() const { return scale == 1.0f && cap == 0.0f; }
  // d y / d z, from y.
  [[nodiscard]] float slope(float y) const {
    const float t = cap == 0.0f ? 0.0f : y / cap;
    return scale * (1.0f - t * t);
  }
  friend bool operator==(const LogitMap&, const LogitMap&) = default;
};

// logits [C, V] f32: each z becomes y. Rows may have a stride.
void map_logits(Backend& backend, const LogitMap& map, TensorView logits);

// logits [C, V] f32. Writes lse [C, 2] f32: the maximum and log(sum exp(logit - max)), apart,
// because their sum would round away what a logprob near zero is made of. A row whose maximum is
// -inf or NaN gives NaN.
void logsumexp(Backend& backend, TensorView logits, TensorView lse);

// The logprob of a logit; lse points to its row's two values. The one place where this is computed.
inline float logprob(float logit, const float* lse) { return (logit - lse[0]) - lse[1]; }

// logprobs[i] = logprob(logits[rows[i], targets[i]], lse[rows[i]]), host memory. A row may have
// several targets.
void compute_target_logprobs(Backend& backend, TensorView logits, TensorView lse,
                             std::span<const int32_t> rows, std::span<const int32_t> targets,
                             std::span<float> logprobs);

// Writes d_logits [C, V]: d_lp[c] * ((j == targets[c]) - exp(logprob of j)), where d_lp is
// the derivative of the loss by the row's target logprob, and times the slope of `map`, by which
// `logits` came to be: the gradient of the head's product. f32, or bf16; may lie over logits itself
// (bf16: the same rows, row_stride 2 V elements). A row with d_lp == 0 gives exact zeros whatever
// its logits hold.
void log_softmax_backward(Backend& backend, TensorView logits, TensorView lse,
                          std::span<const int32_t> targets, std::span<const float> d_lp,
                          TensorView d_logits, const LogitMap& map = {});

}  // namespace strata::ops
