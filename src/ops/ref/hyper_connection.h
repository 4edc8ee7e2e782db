// SPDX-License-Identifier: Apache-2.0
// Hyper-connections of one token in plain loops over a scalar S: the oracle of
// ops/hyper_connection.h.
#pragma once
#include <cmath>
#include <complex>
#include <vector>

namespace strata::ops::ref {

struct HyperShape {
  int64_t streams = 0;
  int64_t width = 0;  // D
  double norm_eps = 1e-6;
  double eps = 1e-6;
  int steps = 1;
  [[nodiscard]] int64_t numbers() const { return 2 * streams + streams * streams; }
};

// mix of x [S D].
template <typename S>
std::vector<S> hyper_mix(const HyperShape& shape, const std::vector<S>& x,
                         const std::vector<S>& fn) {
  S square = 0;
  for (const S& value : x) square += value * value;
  const S rms = std::sqrt(square / static_cast<double>(x.size()) + shape.norm_eps);
  std::vector<S> mix(fn.size() / x.size());
  for (size_t r = 0; r < mix.size(); ++r) {
    for (size_t c = 0; c < x.size(); ++c) mix[r] += fn[r * x.size() + c] * x[c];
    mix[r] /= rms;
  }
  return mix;
}

template <typename S>
S hyper_sigmoid(S x) {
  return 1.0 / (1.0 + std::exp(-x));
}

// Sinkhorn of logits [S, S]: a softmax of rows plus eps, then divisions of columns and of rows.
template <typename S>
void sinkhorn(const HyperShape& shape, const S* logits, S* m) {
  const auto n = static_cast<size_t>(shape.streams);
  for (size_t i = 0; i < n; ++i) {
    S sum = 0;
    for (size_t j = 0; j < n; ++j) sum += m[i * n + j] = std::exp(logits[i * n + j]);
    for (size_t j = 0; j < n; ++j) m[i * n + j] = m[i * n + j] / sum + shape.eps;
  }
  const auto divide = [&](size_t group, size_t step) {
    for (size_t g = 0; g < n; ++g) {
      S sum = shape.eps;
      for (size_t k = 0; k < n; ++k) sum += m[g * group + k * step];
      for (size_t k = 0; k < n; ++k) m[g * group + k * step] /= sum;
    }
  };
  divide(1, n);
  for (int step = 1; step < shape.steps; ++step) {
    divide(n, 1);
    divide(1, n);
  }
}

// pre, post, comb of one token; of pre alone where mix has no more.
template <typename S>
std::vector<S> hyper_weights(const HyperShape& shape, const std::vector<S>& mix,
                             const std::vector<S>& base, const std::vector<S>& scale) {
  const auto n = static_cast<size_t>(shape.streams);
  std::vector<S> w(mix.size());
  for (size_t i = 0; i < n; ++i) w[i] = hyper_sigmoid(mix[i] * scale[0] + base[i]) + shape.eps;
  if (mix.size() == n) return w;
  for (size_t i = n; i < 2 * n; ++i) w[i] = 2.0 * hyper_sigmoid(mix[i] * scale[1] + base[i]);
  std::vector<S> logits;
  for (size_t i = 2 * n; i < w.size(); ++i) logits.push_back(mix[i] * scale[2] + base[i]);
  sinkhorn(shape, logits.data(), w.data() + 2 * n);
  return w;
}

// A site: y and then x' of `out`, which here is `gain` times y, element by element, so that every
// path to a gradient is in one function of x.
template <typename S>
std::vector<S> hyper_collapse_and_expand(const HyperShape& shape, const std::vector<S>& x,
                                         const std::vector<S>& fn, const std::vector<S>& base,
                                         const std::vector<S>& scale, const std::vector<S>& gain) {
  const auto n = static_cast<size_t>(shape.streams);
  const auto width = static_cast<size_t>(shape.width);
  const std::vector<S> w = hyper_weights(shape, hyper_mix(shape, x, fn), base, scale);
  std::vector<S> y(x.size());
  for (size_t d = 0; d < width; ++d) {
    S collapsed = 0;
    for (size_t i = 0; i < n; ++i) collapsed += w[i] * x[i * width + d];
    for (size_t j = 0; j < n; ++j) {
      S sum = w[n + j] * gain[d] * collapsed;
      for (size_t i = 0; i < n; ++i) sum += w[2 * n + i * n + j] * x[i * width + d];
      y[j * width + d] = sum;
    }
  }
  return y;
}

}  // namespace strata::ops::ref
