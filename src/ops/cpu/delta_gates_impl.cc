// SPDX-License-Identifier: Apache-2.0
// Kernels of the gates of a delta net as templates over the path; see cpu/simd.h for what may be
// called here. Every load of a chunk comes before its stores: outputs may lie over inputs.
#include "ops/cpu/delta_gates.h"
#include "ops/cpu/this_path.h"

namespace strata::ops::cpu {

// log(1 + e^x) = max(x, 0) + log1p(e), e = e^-|x|. No logarithm is needed: log1p(e) = 2 atanh(s)
// with s = e / (2 + e) <= 1 / 3, and the odd series of atanh up to s^15 leaves out less than
// s^16 / 17 / (1 - s^2) = 1.6e-9 of it. With u = 2^-24 the error is below 7 u of the result:
// e 2.02, 2 + e 1, the quotient 1 (times 1.08, the slope of atanh), the series 0.5, its fma 1, the
// sum 1.
template <typename V, typename F>
[[gnu::always_inline]] inline F softplus(F x) {
  const F e = exp_below_overflow<V>(V::set1(0.0f) - V::abs(x));
  const F s = e / (V::set1(2.0f) + e);
  const F square = s * s;
  F q = V::fma(V::set1(1.0f / 15), square, V::set1(1.0f / 13));
  q = V::fma(q, square, V::set1(1.0f / 11));
  q = V::fma(q, square, V::set1(1.0f / 9));
  q = V::fma(q, square, V::set1(1.0f / 7));
  q = V::fma(q, square, V::set1(1.0f / 5));
  q = V::fma(q, square, V::set1(1.0f / 3));
  const F twice = s + s;
  return V::max(V::set1(0.0f), x) + V::fma(twice * square, q, twice);
}

template <typename V>
void delta_gates_columns(const DeltaGatesKernel& k, float* log_decay, int64_t log_decay_stride,
                         float* beta, int64_t beta_stride, int64_t begin, int64_t end) {
  with_type<V>(k.type, [&]<typename X>() {
    const X* a = static_cast<const X*>(k.a) + begin;
    const X* b = static_cast<const X*>(k.b) + begin;
    for_chunks<V>(end - begin, [&](int64_t n, auto part) {
      const auto rate = V::set1(0.0f) - exp<V>(V::load(k.a_log + begin + n, part));
      const auto bias = V::load(k.dt_bias + begin + n, part);
      for (int64_t t = 0; t < k.num_tokens; ++t) {
        const auto s = V::load(a + t * k.a_stride + n, part) + bias;
        const auto x = V::load(b + t * k.b_stride + n, part);
        V::store(log_decay + t * log_decay_stride + begin + n, rate * softplus<V>(s), part);
        V::store(beta + t * beta_stride + begin + n, sigmoid<V>(x), part);
      }
    });
  });
}

// log_decay = rate softplus(s), s = a + dt_bias, rate = -exp(a_log): d_s = d rate sigmoid(s),
// d_a_log = d log_decay. beta = sigmoid(b): d_b = d sigmoid(b) (1 - sigmoid(b)).
template <typename V>
void delta_gates_backward_columns(const DeltaGatesKernel& k, const DeltaGatesGradients& grads,
                                  int64_t begin, int64_t end) {
  with_type<V>(k.type, [&]<typename X>() {
    for_chunks<V>(end - begin, [&](int64_t i, auto part) {
      const int64_t n = begin + i;
      const auto zero = V::set1(0.0f);
      const auto rate = zero - exp<V>(V::load(k.a_log + n, part));
      const auto bias = V::load(k.dt_bias + n, part);
      auto d_a_log = grads.d_a_log == nullptr ? zero : V::load(grads.d_a_log + n, part);
      auto d_dt_bias = grads.d_dt_bias == nullptr ? zero : V::load(grads.d_dt_bias + n, part);
      for (int64_t t = 0; t < k.num_tokens; ++t) {
        const auto s = V::load(static_cast<const X*>(k.a) + t * k.a_stride + n, part) + bias;
        const auto b = V::load(static_cast<const X*>(k.b) + t * k.b_stride + n, part);
        const auto d_decay = V::load(grads.d_log_decay + t * grads.d_log_decay_stride + n, part);
        const auto d_beta = V::load(grads.d_beta + t * grads.d_beta_stride + n, part);
        const auto d_s = d_decay * (rate * sigmoid<V>(s));
        d_dt_bias = d_dt_bias + d_s;
        d_a_log = V::fma(d_decay, rate * softplus<V>(s), d_a_log);
        auto rest = b;
        const auto beta = sigmoid_and_complement<V>(b, rest);
        V::store(static_cast<X*>(grads.d_a) + t * grads.d_a_stride + n, d_s, part);
        V::store(static_cast<X*>(grads.d_b) + t * grads.d_b_stride + n, d_beta * (beta * rest),
                 part);
      }
      if (grads.d_a_log != nullptr) V::store(grads.d_a_log + n, d_a_log, part);
      if (grads.d_dt_bias != nullptr) V::store(grads.d_dt_bias + n, d_dt_bias, part);
    });
  });
}

template void delta_gates_columns<ThisPath>(const DeltaGatesKernel&, float*, int64_t, float*,
                                            int64_t, int64_t, int64_t);
template void delta_gates_backward_columns<ThisPath>(const DeltaGatesKernel&,
                                                     const DeltaGatesGradients&, int64_t, int64_t);

}  // namespace strata::ops::cpu
