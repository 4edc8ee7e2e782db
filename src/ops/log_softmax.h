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
// the derivative of the loss by the row's target logprob. f32, or bf16; may lie over logits itself
// (bf16: the same rows, row_stride 2 V elements). A row with d_lp == 0 gives exact zeros whatever
// its logits hold.
void log_softmax_backward(Backend& backend, TensorView logits, TensorView lse,
                          std::span<const int32_t> targets, std::span<const float> d_lp,
                          TensorView d_logits);

}  // namespace strata::ops
