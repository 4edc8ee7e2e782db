// SPDX-License-Identifier: Apache-2.0
// Kernels of ops/log_softmax.h for one path: one row of V logits.
#pragma once
#include <span>

#include "ops/cpu/simd.h"

namespace strata {
class CpuBackend;
struct TensorView;
}  // namespace strata

namespace strata::ops {
struct LogitMap;
}  // namespace strata::ops

namespace strata::ops::cpu {

// The CPU behind ops/log_softmax.h: arguments are checked.
void map_logits(CpuBackend& backend, const LogitMap& map, TensorView logits);
void logsumexp(CpuBackend& backend, TensorView logits, TensorView lse);
void compute_target_logprobs(CpuBackend& backend, TensorView logits, TensorView lse,
                             std::span<const int32_t> rows, std::span<const int32_t> targets,
                             std::span<float> logprobs);
void log_softmax_backward(CpuBackend& backend, TensorView logits, TensorView lse,
                          std::span<const int32_t> targets, std::span<const float> d_lp,
                          TensorView d_logits, const LogitMap& map);

// y = cap tanh(scale z / cap) of a row of logits in place, or scale z where the cap is 0.
template <typename V>
void map_logits_row(float* logits, int64_t vocab, float scale, float cap);

// Writes the row's maximum and its sum of exp(logit - maximum).
template <typename V>
void compute_max_and_sum_exp(const float* logits, int64_t vocab, float* maximum, float* sum);

// lse holds the row's maximum and the log of its sum. d_logits may lie over logits: it is written
// in ascending order, never ahead of what is read.
template <typename V>
void log_softmax_backward_row(const float* logits, int64_t vocab, const float* lse, int64_t target,
                              float d_lp, void* d_logits, DType d_type);
// The same times the slope of map_logits_row, of which `logits` are the results.
template <typename V>
void mapped_log_softmax_backward_row(const float* logits, int64_t vocab, const float* lse,
                                     int64_t target, float d_lp, float scale, float cap,
                                     void* d_logits, DType d_type);

}  // namespace strata::ops::cpu
