// SPDX-License-Identifier: Apache-2.0
// Gated activations in plain loops over a scalar S: the oracle of ops/gated.h.
#pragma once
#include <cmath>
#include <complex>
#include <vector>

#include "ops/gated.h"

namespace strata::ops::ref {

constexpr double kGeluC1 = 1.5957691216057307117597842397375;  // 2 sqrt(2 / pi)

// 2 v of ops/gated.h.
template <typename S>
S gelu_argument(S x) {
  return kGeluC1 * (x + 0.044715 * x * x * x);
}

// act(x) and act'(x).
template <typename S>
S activate(Activation activation, S x) {
  switch (activation) {
    case Activation::kSilu:
      return x / (1.0 + std::exp(-x));
    case Activation::kGeluTanh:
      return x / (1.0 + std::exp(-gelu_argument(x)));
    case Activation::kSigmoid:
      return 1.0 / (1.0 + std::exp(-x));
    case Activation::kIdentity:
      return x;
  }
  return x;
}

inline double activation_slope(Activation activation, double x) {
  if (activation == Activation::kIdentity) return 1.0;
  const bool gelu = activation == Activation::kGeluTanh;
  const double z = gelu ? gelu_argument(x) : x;
  const double d_z = gelu ? kGeluC1 * (1.0 + 3 * 0.044715 * x * x) : 1.0;
  const double sigmoid = 1.0 / (1.0 + std::exp(-z));
  const double complement = 1.0 / (1.0 + std::exp(z));
  if (activation == Activation::kSigmoid) return sigmoid * complement;
  return sigmoid + x * sigmoid * complement * d_z;
}

template <typename S>
std::vector<S> act_and_mul(Activation activation, const std::vector<S>& gate,
                           const std::vector<S>& up) {
  std::vector<S> y(gate.size());
  for (size_t i = 0; i < y.size(); ++i) y[i] = activate(activation, gate[i]) * up[i];
  return y;
}

// Writes d_gate and d_up.
inline void act_and_mul_backward(Activation activation, const std::vector<double>& gate,
                                 const std::vector<double>& up, const std::vector<double>& d_y,
                                 std::vector<double>& d_gate, std::vector<double>& d_up) {
  for (size_t i = 0; i < gate.size(); ++i) {
    d_gate[i] = d_y[i] * up[i] * activation_slope(activation, gate[i]);
    d_up[i] = d_y[i] * activate(activation, gate[i]);
  }
}

}  // namespace strata::ops::ref
