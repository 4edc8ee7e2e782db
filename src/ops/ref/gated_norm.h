// SPDX-License-Identifier: Apache-2.0
// Gated RMSNorm in plain loops over a scalar S: the oracle of ops/gated_norm.h. D head width.
#pragma once
#include <vector>

#include "ops/ref/gated.h"
#include "ops/ref/rms_norm.h"

namespace strata::ops::ref {

// y [rows, D] from x and z [rows, D], weight [D].
template <typename S>
std::vector<S> gated_norm(const std::vector<S>& x, const std::vector<S>& z,
                          const std::vector<S>& weight, double eps) {
  std::vector<S> y = rms_norm(x, weight, eps);
  for (size_t i = 0; i < y.size(); ++i) y[i] *= activate(Activation::kSilu, z[i]);
  return y;
}

// Writes d_x and d_z [rows, D]; adds to d_weight [D].
inline void gated_norm_backward(const std::vector<double>& x, const std::vector<double>& z,
                                const std::vector<double>& weight, double eps,
                                const std::vector<double>& d_y, std::vector<double>& d_x,
                                std::vector<double>& d_z, std::vector<double>& d_weight) {
  // y = normed silu(z)
  const std::vector<double> normed = rms_norm(x, weight, eps);
  std::vector<double> d_normed(d_y.size());
  d_z.resize(d_y.size());
  for (size_t i = 0; i < d_y.size(); ++i) {
    d_normed[i] = d_y[i] * activate(Activation::kSilu, z[i]);
    d_z[i] = d_y[i] * normed[i] * activation_slope(Activation::kSilu, z[i]);
  }
  // normed = rms_norm(x)
  d_x.assign(d_y.size(), 0.0);
  rms_norm_backward(x, weight, eps, d_normed, d_x, d_weight);
}

}  // namespace strata::ops::ref
