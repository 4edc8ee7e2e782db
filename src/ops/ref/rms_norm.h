// SPDX-License-Identifier: Apache-2.0
// RMSNorm in plain loops over a scalar S (double, or complex<double> for the complex step): the
// oracle of ops/rms_norm.h. T tokens, D model width.
#pragma once
#include <cmath>
#include <complex>
#include <cstdint>
#include <vector>

namespace strata::ops::ref {

// 1 / sqrt(mean(x^2) + eps) of `dim` elements.
template <typename S>
S inv_rms(const S* x, int64_t dim, double eps) {
  S sum = 0;
  for (int64_t i = 0; i < dim; ++i) sum += x[i] * x[i];
  return S(1) / std::sqrt(sum / static_cast<double>(dim) + eps);
}

// y [T, D] from x [T, D] and weight [D]; the multiplier is offset + weight.
template <typename S>
std::vector<S> rms_norm(const std::vector<S>& x, const std::vector<S>& weight, double eps,
                        double offset = 0) {
  const auto dim = static_cast<int64_t>(weight.size());
  std::vector<S> y(x.size());
  for (size_t row = 0; row < x.size(); row += weight.size()) {
    const S inv = inv_rms(&x[row], dim, eps);
    for (size_t i = 0; i < weight.size(); ++i) y[row + i] = x[row + i] * inv * (offset + weight[i]);
  }
  return y;
}

// Adds to d_x [T, D] and d_weight [D].
inline void rms_norm_backward(const std::vector<double>& x, const std::vector<double>& weight,
                              double eps, const std::vector<double>& d_y, std::vector<double>& d_x,
                              std::vector<double>& d_weight, double offset = 0) {
  const auto dim = static_cast<int64_t>(weight.size());
  for (size_t row = 0; row < x.size(); row += weight.size()) {
    const double inv = inv_rms(&x[row], dim, eps);
    double dot = 0;
    for (size_t i = 0; i < weight.size(); ++i) {
      dot += d_y[row + i] * (offset + weight[i]) * x[row + i];
    }
    // y = x inv (offset + w), and d inv / d x = -inv^3 x / D
    for (size_t i = 0; i < weight.size(); ++i) {
      d_x[row + i] += d_y[row + i] * (offset + weight[i]) * inv -
                      dot * inv * inv * inv * x[row + i] / static_cast<double>(dim);
      d_weight[i] += d_y[row + i] * x[row + i] * inv;
    }
  }
}

}  // namespace strata::ops::ref
