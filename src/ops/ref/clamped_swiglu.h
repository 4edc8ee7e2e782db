// SPDX-License-Identifier: Apache-2.0
// Clamped SwiGLU in plain loops: the oracle of ops/clamped_swiglu.h.
#pragma once
#include <algorithm>
#include <cmath>
#include <vector>

#include "ops/clamped_swiglu.h"

namespace strata::ops::ref {

// g sigmoid(alpha g), and its slope.
inline double swiglu_value(const SwigluForm& form, double g) {
  return g / (1.0 + std::exp(-double{form.alpha} * g));
}
inline double swiglu_slope(const SwigluForm& form, double g) {
  const double z = double{form.alpha} * g;
  const double sigmoid = 1.0 / (1.0 + std::exp(-z));
  return sigmoid + z * sigmoid / (1.0 + std::exp(z));
}

inline double clamped_swiglu(const SwigluForm& form, double gate, double up) {
  const double limit = form.limit;
  return swiglu_value(form, std::min(gate, limit)) *
         (std::clamp(up, -limit, limit) + double{form.up_offset});
}

// Writes d_gate and d_up of one element.
inline void clamped_swiglu_backward(const SwigluForm& form, double gate, double up, double d_y,
                                    double& d_gate, double& d_up) {
  const double limit = form.limit;
  const double g = std::min(gate, limit);
  const double u = std::clamp(up, -limit, limit) + double{form.up_offset};
  d_gate = gate > limit ? 0.0 : d_y * u * swiglu_slope(form, g);
  d_up = std::abs(up) > limit ? 0.0 : d_y * swiglu_value(form, g);
}

}  // namespace strata::ops::ref
