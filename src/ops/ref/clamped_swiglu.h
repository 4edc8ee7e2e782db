// SPDX-License-Identifier: Apache-2.0
// Clamped SwiGLU in plain loops: the oracle of ops/clamped_swiglu.h.
#pragma once
#include <algorithm>
#include <cmath>
#include <vector>

#include "ops/ref/gated.h"

namespace strata::ops::ref {

inline double clamped_swiglu(double limit, double gate, double up) {
  return activate(Activation::kSilu, std::min(gate, limit)) * std::clamp(up, -limit, limit);
}

// Writes d_gate and d_up of one element.
inline void clamped_swiglu_backward(double limit, double gate, double up, double d_y,
                                    double& d_gate, double& d_up) {
  const double g = std::min(gate, limit);
  const double u = std::clamp(up, -limit, limit);
  d_gate = gate > limit ? 0.0 : d_y * u * activation_slope(Activation::kSilu, g);
  d_up = std::abs(up) > limit ? 0.0 : d_y * activate(Activation::kSilu, g);
}

}  // namespace strata::ops::ref
