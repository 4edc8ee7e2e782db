// SwiGLU in plain loops over a scalar S: the oracle of ops/swiglu.h.
#pragma once
#include <cmath>
#include <complex>
#include <vector>

namespace strata::ops::ref {

template <typename S>
std::vector<S> swiglu(const std::vector<S>& gate, const std::vector<S>& up) {
  std::vector<S> y(gate.size());
  for (size_t i = 0; i < y.size(); ++i) y[i] = gate[i] / (1.0 + std::exp(-gate[i])) * up[i];
  return y;
}

// Writes d_gate and d_up.
inline void swiglu_backward(const std::vector<double>& gate, const std::vector<double>& up,
                            const std::vector<double>& d_y, std::vector<double>& d_gate,
                            std::vector<double>& d_up) {
  for (size_t i = 0; i < gate.size(); ++i) {
    const double sigmoid = 1.0 / (1.0 + std::exp(-gate[i]));
    const double complement = 1.0 / (1.0 + std::exp(gate[i]));
    d_gate[i] = d_y[i] * up[i] * (sigmoid + gate[i] * sigmoid * complement);
    d_up[i] = d_y[i] * gate[i] * sigmoid;
  }
}

}  // namespace strata::ops::ref
