// SPDX-License-Identifier: Apache-2.0
// Log-softmax kernels as templates over the path; see cpu/simd.h for what may be called here.
#include "ops/cpu/log_softmax.h"
#include "ops/cpu/soft_cap_impl.h"
#include "ops/cpu/this_path.h"

namespace strata::ops::cpu {

template <typename V>
void map_logits_row(float* logits, int64_t vocab, float scale, float cap) {
  const auto factor = V::set1(cap == 0.0f ? scale : scale / cap);
  const auto bound = V::set1(cap);
  for_chunks<V>(vocab, [&](int64_t i, auto part) {
    const auto x = V::load(logits + i, part) * factor;
    V::store(logits + i, cap == 0.0f ? x : bound * tanh<V>(x), part);
  });
}

template <typename V>
void compute_max_and_sum_exp(const float* logits, int64_t vocab, float* maximum, float* sum) {
  constexpr float kNone = -__builtin_inff();
  auto most = V::set1(kNone);
  for_chunks<V>(
      vocab, [&](int64_t i, auto part) { most = V::max(V::load(logits + i, part, kNone), most); });
  *maximum = V::max_lane(most);
  const auto shift = V::set1(*maximum);
  auto total = V::set1(0.0f);
  // A lane past the end holds -inf and adds exp(-inf) = 0.
  for_chunks<V>(vocab, [&](int64_t i, auto part) {
    total = total + exp_below_overflow<V>(V::load(logits + i, part, kNone) - shift);
  });
  *sum = V::sum(total);
}

// lp = logit[target] - lse: d_logit[j] = d_lp ((j == target) - exp(logit[j] - lse)), lse =
// {maximum, log_sum}
template <typename V, typename D>
void log_softmax_backward_typed(const float* logits, int64_t vocab, const float* lse,
                                int64_t target, float d_lp, D* d_logits) {
  if (d_lp == 0.0f) {
    for_chunks<V>(vocab,
                  [&](int64_t i, auto part) { V::store(d_logits + i, V::set1(0.0f), part); });
    return;
  }
  const auto maximum = V::set1(lse[0]);
  const auto log_sum = V::set1(lse[1]);
  const auto scale = V::set1(d_lp);
  const auto p_target = exp<V>((V::set1(logits[target]) - maximum) - log_sum);
  for_chunks<V>(vocab, [&](int64_t i, auto part) {
    const auto p = exp<V>((V::load(logits + i, part) - maximum) - log_sum);
    V::store(d_logits + i, scale * (V::set1(0.0f) - p), part);
  });
  V::store(d_logits + target, scale * (V::set1(1.0f) - p_target), Part{1});
}

template <typename V>
void log_softmax_backward_row(const float* logits, int64_t vocab, const float* lse, int64_t target,
                              float d_lp, void* d_logits, DType d_type) {
  with_type<V>(d_type, [&]<typename D>() {
    log_softmax_backward_typed<V>(logits, vocab, lse, target, d_lp, static_cast<D*>(d_logits));
  });
}

// The same with slope(y) = scale (1 - (y / cap)^2) on every element.
template <typename V, typename D>
void mapped_backward_typed(const float* logits, int64_t vocab, const float* lse, int64_t target,
                           float d_lp, float scale, float cap, D* d_logits) {
  if (d_lp == 0.0f) {
    for_chunks<V>(vocab,
                  [&](int64_t i, auto part) { V::store(d_logits + i, V::set1(0.0f), part); });
    return;
  }
  const auto maximum = V::set1(lse[0]);
  const auto log_sum = V::set1(lse[1]);
  const auto inverse_cap = V::set1(cap == 0.0f ? 0.0f : 1.0f / cap);
  const auto factor = V::set1(d_lp * scale);
  const auto y_target = V::set1(logits[target]);
  const auto p_target = exp<V>((y_target - maximum) - log_sum);
  const auto slope_target = factor * soft_cap_slope<V>(y_target, inverse_cap);
  for_chunks<V>(vocab, [&](int64_t i, auto part) {
    const auto y = V::load(logits + i, part);
    const auto p = exp<V>((y - maximum) - log_sum);
    const auto slope = factor * soft_cap_slope<V>(y, inverse_cap);
    V::store(d_logits + i, slope * (V::set1(0.0f) - p), part);
  });
  V::store(d_logits + target, slope_target * (V::set1(1.0f) - p_target), Part{1});
}

template <typename V>
void mapped_log_softmax_backward_row(const float* logits, int64_t vocab, const float* lse,
                                     int64_t target, float d_lp, float scale, float cap,
                                     void* d_logits, DType d_type) {
  with_type<V>(d_type, [&]<typename D>() {
    mapped_backward_typed<V>(logits, vocab, lse, target, d_lp, scale, cap,
                             static_cast<D*>(d_logits));
  });
}

template void map_logits_row<ThisPath>(float*, int64_t, float, float);
template void mapped_log_softmax_backward_row<ThisPath>(const float*, int64_t, const float*,
                                                        int64_t, float, float, float, void*, DType);
template void compute_max_and_sum_exp<ThisPath>(const float*, int64_t, float*, float*);
template void log_softmax_backward_row<ThisPath>(const float*, int64_t, const float*, int64_t,
                                                 float, void*, DType);

}  // namespace strata::ops::cpu
