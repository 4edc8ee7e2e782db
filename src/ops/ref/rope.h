// SPDX-License-Identifier: Apache-2.0
// Head norm and rotary embedding in plain loops over a scalar S: the oracle of ops/rope.h. T
// tokens, N heads, H head width, R rotary width.
#pragma once
#include "ops/ref/rms_norm.h"

namespace strata::ops::ref {

struct HeadNormRope {
  int64_t num_heads = 1;
  int64_t head_dim = 2;
  int64_t rotary_dim = 2;
  bool norm = true;  // else weight is not read
  bool interleaved = false;
  double eps = 1e-6;
  double weight_offset = 0;
  std::vector<int32_t> positions;  // [T]
  std::vector<double> cos;         // [P, R / 2]
  std::vector<double> sin;
};

// y [T, N, H] from x [T, N, H] and weight [H].
template <typename S>
std::vector<S> head_norm_rope(const HeadNormRope& args, const std::vector<S>& x,
                              const std::vector<S>& weight) {
  const auto dim = static_cast<size_t>(args.head_dim);
  const auto half = static_cast<size_t>(args.rotary_dim) / 2;
  std::vector<S> normed = args.norm ? rms_norm(x, weight, args.eps, args.weight_offset) : x;
  std::vector<S> y(x.size());
  // Where the two elements of pair h stand in a row of x.
  const auto first = [&](size_t h) { return args.interleaved ? 2 * h : h; };
  const auto second = [&](size_t h) { return args.interleaved ? 2 * h + 1 : half + h; };
  for (size_t row = 0; row * dim < x.size(); ++row) {
    const auto token = row / static_cast<size_t>(args.num_heads);
    const size_t table = static_cast<size_t>(args.positions[token]) * half;
    const S* n = &normed[row * dim];
    for (size_t h = 0; h < half; ++h) {
      const double c = args.cos[table + h];
      const double s = args.sin[table + h];
      y[row * dim + h] = n[first(h)] * c - n[second(h)] * s;
      y[row * dim + half + h] = n[second(h)] * c + n[first(h)] * s;
    }
    for (size_t h = 2 * half; h < dim; ++h) y[row * dim + h] = n[h];
  }
  return y;
}

// Rows whose first `rotary` columns are two halves to rows of pairs (2h, 2h + 1).
inline std::vector<double> interleaved_halves(const std::vector<double>& halves, size_t dim,
                                              size_t rotary) {
  std::vector<double> pairs = halves;
  for (size_t i = 0; i < halves.size(); ++i) {
    const size_t h = i % dim;
    if (h >= rotary) continue;
    pairs[i - h + (h < rotary / 2 ? 2 * h : 2 * (h - rotary / 2) + 1)] = halves[i];
  }
  return pairs;
}

// Adds to d_x [T, N, H] and, with a norm, to d_weight [H].
inline void head_norm_rope_backward(const HeadNormRope& args, const std::vector<double>& x,
                                    const std::vector<double>& weight,
                                    const std::vector<double>& d_y, std::vector<double>& d_x,
                                    std::vector<double>& d_weight) {
  HeadNormRope inverse = args;  // the transpose of a rotation turns the other way
  inverse.norm = false;
  inverse.interleaved = false;
  for (double& s : inverse.sin) s = -s;
  std::vector<double> d_normed = head_norm_rope(inverse, d_y, weight);
  if (args.interleaved) {
    d_normed = interleaved_halves(d_normed, static_cast<size_t>(args.head_dim),
                                  static_cast<size_t>(args.rotary_dim));
  }
  if (args.norm) {
    rms_norm_backward(x, weight, args.eps, d_normed, d_x, d_weight, args.weight_offset);
  } else {
    for (size_t i = 0; i < x.size(); ++i) d_x[i] += d_normed[i];
  }
}

}  // namespace strata::ops::ref
