// SPDX-License-Identifier: Apache-2.0
// Depthwise causal convolution, with SiLU or without, in plain loops over a scalar S: the oracle of
// ops/causal_conv.h, for one sequence that starts at position 0. T tokens, C channels, K taps.
#pragma once
#include <cmath>
#include <complex>
#include <cstdint>
#include <vector>

namespace strata::ops::ref {

struct CausalConv {
  int64_t num_tokens = 0;    // T
  int64_t num_channels = 0;  // C
  int64_t num_taps = 0;      // K
  bool silu = true;

  // Calls body(output, input, tap) for every product of the convolution, as indices of [T, C], [T,
  // C] and [C, K].
  template <typename Body>
  void for_each_product(Body&& body) const {
    for (int64_t t = 0; t < num_tokens; ++t) {
      for (int64_t c = 0; c < num_channels; ++c) {
        for (int64_t i = 0; i < num_taps; ++i) {
          const int64_t from = t - num_taps + 1 + i;
          if (from < 0) continue;
          body(static_cast<size_t>(t * num_channels + c),
               static_cast<size_t>(from * num_channels + c), static_cast<size_t>(c * num_taps + i));
        }
      }
    }
  }
};

// z [T, C], before SiLU, from x [T, C], weight [C, K] and bias [C], or none.
template <typename S>
std::vector<S> causal_conv(const CausalConv& conv, const std::vector<S>& x,
                           const std::vector<S>& weight, const std::vector<S>& bias = {}) {
  std::vector<S> z(x.size());
  for (size_t i = 0; i < z.size() && !bias.empty(); ++i) z[i] = bias[i % bias.size()];
  conv.for_each_product([&](size_t out, size_t in, size_t tap) { z[out] += weight[tap] * x[in]; });
  return z;
}

template <typename S>
std::vector<S> activated_causal_conv(const CausalConv& conv, const std::vector<S>& x,
                                     const std::vector<S>& weight,
                                     const std::vector<S>& bias = {}) {
  std::vector<S> y = causal_conv(conv, x, weight, bias);
  for (S& value : y) {
    if (conv.silu) value = value / (1.0 + std::exp(-value));
  }
  return y;
}

// act'(z).
inline double causal_conv_slope(const CausalConv& conv, double z) {
  const double sigmoid = 1.0 / (1.0 + std::exp(-z));
  return conv.silu ? sigmoid * (1.0 + z * (1.0 - sigmoid)) : 1.0;
}

// Writes d_x [T, C] and adds to d_weight [C, K] and d_bias [C], which is as long as the bias.
inline void causal_conv_backward(const CausalConv& conv, const std::vector<double>& x,
                                 const std::vector<double>& weight, const std::vector<double>& bias,
                                 const std::vector<double>& d_y, std::vector<double>& d_x,
                                 std::vector<double>& d_weight, std::vector<double>& d_bias) {
  // y = act(z)
  std::vector<double> d_z = causal_conv(conv, x, weight, bias);
  for (size_t i = 0; i < d_z.size(); ++i) d_z[i] = d_y[i] * causal_conv_slope(conv, d_z[i]);
  // z = bias + weight x
  for (size_t i = 0; i < d_z.size() && !d_bias.empty(); ++i) d_bias[i % d_bias.size()] += d_z[i];
  d_x.assign(x.size(), 0.0);
  conv.for_each_product([&](size_t out, size_t in, size_t tap) {
    d_x[in] += weight[tap] * d_z[out];
    d_weight[tap] += d_z[out] * x[in];
  });
}

}  // namespace strata::ops::ref
