// SPDX-License-Identifier: Apache-2.0
// Depthwise causal convolution with SiLU in plain loops over a scalar S: the oracle of
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

// z [T, C], before SiLU, from x [T, C] and weight [C, K].
template <typename S>
std::vector<S> causal_conv(const CausalConv& conv, const std::vector<S>& x,
                           const std::vector<S>& weight) {
  std::vector<S> z(x.size());
  conv.for_each_product([&](size_t out, size_t in, size_t tap) { z[out] += weight[tap] * x[in]; });
  return z;
}

template <typename S>
std::vector<S> causal_conv_silu(const CausalConv& conv, const std::vector<S>& x,
                                const std::vector<S>& weight) {
  std::vector<S> y = causal_conv(conv, x, weight);
  for (S& value : y) value = value / (1.0 + std::exp(-value));
  return y;
}

// Writes d_x [T, C] and adds to d_weight [C, K].
inline void causal_conv_silu_backward(const CausalConv& conv, const std::vector<double>& x,
                                      const std::vector<double>& weight,
                                      const std::vector<double>& d_y, std::vector<double>& d_x,
                                      std::vector<double>& d_weight) {
  // y = silu(z)
  std::vector<double> d_z = causal_conv(conv, x, weight);
  for (size_t i = 0; i < d_z.size(); ++i) {
    const double sigmoid = 1.0 / (1.0 + std::exp(-d_z[i]));
    d_z[i] = d_y[i] * sigmoid * (1.0 + d_z[i] * (1.0 - sigmoid));
  }
  // z += weight x
  d_x.assign(x.size(), 0.0);
  conv.for_each_product([&](size_t out, size_t in, size_t tap) {
    d_x[in] += weight[tap] * d_z[out];
    d_weight[tap] += d_z[out] * x[in];
  });
}

}  // namespace strata::ops::ref
