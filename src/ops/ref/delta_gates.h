// SPDX-License-Identifier: Apache-2.0
// The gates of a gated delta net in plain loops over a scalar S: the oracle of ops/delta_gates.h.
// T tokens, H heads.
#pragma once
#include <algorithm>
#include <cmath>
#include <complex>
#include <type_traits>
#include <vector>

namespace strata::ops::ref {

template <typename S>
S softplus(S s) {
  if constexpr (std::is_same_v<S, double>) {
    return std::max(s, 0.0) + std::log1p(std::exp(-std::abs(s)));
  } else {
    return std::log(1.0 + std::exp(s));
  }
}

template <typename S>
S logistic(S x) {
  return 1.0 / (1.0 + std::exp(-x));
}

// log_decay [T, H] from a [T, H], a_log and dt_bias [H].
template <typename S>
std::vector<S> log_decay(const std::vector<S>& a, const std::vector<S>& a_log,
                         const std::vector<S>& dt_bias) {
  std::vector<S> out(a.size());
  for (size_t i = 0; i < a.size(); ++i) {
    const size_t head = i % a_log.size();
    out[i] = -std::exp(a_log[head]) * softplus(a[i] + dt_bias[head]);
  }
  return out;
}

// beta [T, H] from b [T, H].
template <typename S>
std::vector<S> delta_beta(const std::vector<S>& b) {
  std::vector<S> out(b.size());
  for (size_t i = 0; i < b.size(); ++i) out[i] = logistic(b[i]);
  return out;
}

struct DeltaGateGradients {
  std::vector<double> a;        // [T, H]
  std::vector<double> b;        // [T, H]
  std::vector<double> a_log;    // [H]
  std::vector<double> dt_bias;  // [H]
};

inline DeltaGateGradients delta_gates_backward(const std::vector<double>& a,
                                               const std::vector<double>& b,
                                               const std::vector<double>& a_log,
                                               const std::vector<double>& dt_bias,
                                               const std::vector<double>& d_log_decay,
                                               const std::vector<double>& d_beta) {
  DeltaGateGradients d{std::vector<double>(a.size()), std::vector<double>(b.size()),
                       std::vector<double>(a_log.size()), std::vector<double>(a_log.size())};
  for (size_t i = 0; i < a.size(); ++i) {
    const size_t head = i % a_log.size();
    const double s = a[i] + dt_bias[head];
    // log_decay = -exp(a_log) softplus(s)
    d.a[i] = d_log_decay[i] * -std::exp(a_log[head]) * logistic(s);
    d.dt_bias[head] += d.a[i];
    d.a_log[head] += d_log_decay[i] * -std::exp(a_log[head]) * softplus(s);
    // beta = sigmoid(b)
    d.b[i] = d_beta[i] * logistic(b[i]) * logistic(-b[i]);
  }
  return d;
}

}  // namespace strata::ops::ref
