// SPDX-License-Identifier: Apache-2.0
// What references of blocks and connectors are written with: float64 on plain vectors, one token a
// row, nothing of src/. A reference follows the formulas that the block's header names as its
// source, in their order, one sequence at a time; speed is no aim.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <numeric>
#include <string>
#include <vector>

namespace strata::testing {

using Row = std::vector<double>;
using Rows = std::vector<Row>;

// Parameters by their names in a checkpoint, those of the layer without "model.layers.0.".
using Params = std::map<std::string, Row>;

struct ReferenceInput {
  const Params& params;
  const Rows& x;                       // of one sequence, from position 0 on
  const std::vector<int32_t>& tokens;  // of the same rows
};
using Reference = std::function<Rows(const ReferenceInput& in)>;

inline double sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }
inline double silu(double x) { return x * sigmoid(x); }
inline double softplus(double x) { return std::log1p(std::exp(x)); }

inline double dot(const Row& a, const Row& b) {
  return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
}
inline Row part(const Row& x, size_t first, size_t count) {
  const auto begin = x.begin() + static_cast<std::ptrdiff_t>(first);
  return {begin, begin + static_cast<std::ptrdiff_t>(count)};
}
inline void add_scaled(Row& y, double factor, const Row& x) {
  for (size_t i = 0; i < y.size(); ++i) y[i] += factor * x[i];
}

// y = W x + bias, W [outputs, inputs] row by row.
inline Row linear(const Row& weight, const Row& x, const Row& bias = {}) {
  Row y(weight.size() / x.size());
  for (size_t i = 0; i < y.size(); ++i) {
    y[i] = bias.empty() ? 0.0 : bias[i];
    for (size_t j = 0; j < x.size(); ++j) y[i] += weight[i * x.size() + j] * x[j];
  }
  return y;
}
// The same of parameters by name: "a.weight", and "a.bias" where there is one.
inline Row linear(const Params& params, const std::string& name, const Row& x) {
  const auto bias = params.find(name + ".bias");
  return linear(params.at(name + ".weight"), x, bias == params.end() ? Row() : bias->second);
}

// x / sqrt(mean(x^2) + eps) * (offset + weight); no weight: times one.
inline Row rms_norm(const Row& x, const Row& weight, double eps, double offset = 0.0) {
  const double inverse = 1.0 / std::sqrt(dot(x, x) / static_cast<double>(x.size()) + eps);
  Row y(x.size());
  for (size_t i = 0; i < x.size(); ++i) {
    y[i] = x[i] * inverse * (weight.empty() ? 1.0 : offset + weight[i]);
  }
  return y;
}

inline Row softmax(const Row& x) {
  const double most = *std::max_element(x.begin(), x.end());
  Row y(x.size());
  double sum = 0.0;
  for (size_t i = 0; i < x.size(); ++i) sum += y[i] = std::exp(x[i] - most);
  for (double& value : y) value /= sum;
  return y;
}

enum class Pairs { kHalves, kNeighbours };

// Turns `dim` columns from `first` on by the position's angles, theta^(-2 i / dim) a position: pair
// i is columns (i, i + dim / 2), or (2 i, 2 i + 1).
inline void rotate(Row& x, size_t first, size_t dim, double position, double theta, Pairs pairs) {
  for (size_t i = 0; i < dim / 2; ++i) {
    const double angle =
        position * std::pow(theta, -2.0 * static_cast<double>(i) / static_cast<double>(dim));
    const size_t a = first + (pairs == Pairs::kHalves ? i : 2 * i);
    const size_t b = pairs == Pairs::kHalves ? a + dim / 2 : a + 1;
    const double x_a = x[a];
    x[a] = x_a * std::cos(angle) - x[b] * std::sin(angle);
    x[b] = x[b] * std::cos(angle) + x_a * std::sin(angle);
  }
}

// The places of the `count` largest, the largest first; of equals the lower place first.
inline std::vector<size_t> top_places(const Row& x, size_t count) {
  std::vector<size_t> places(x.size());
  std::iota(places.begin(), places.end(), size_t{0});
  std::stable_sort(places.begin(), places.end(), [&](size_t a, size_t b) { return x[a] > x[b]; });
  places.resize(std::min(count, places.size()));
  return places;
}

}  // namespace strata::testing
