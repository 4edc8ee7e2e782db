// SPDX-License-Identifier: Apache-2.0
// Norm and rotation of tails in plain loops over a scalar S: the oracle of ops/tail_rope.h.
#pragma once
#include <cmath>
#include <complex>
#include <cstdint>
#include <vector>

namespace strata::ops::ref {

struct TailRope {
  int64_t num_heads = 1;
  int64_t width = 2;
  int64_t rotated = 2;
  bool norm = false;
  bool inverse = false;
  double eps = 1e-6;
  std::vector<int32_t> positions;  // [T]
  std::vector<double> cos;         // [P, R / 2]
  std::vector<double> sin;
};

// Divides `width` elements by their root mean square.
template <typename S>
void divide_by_rms(S* of, size_t width, double eps) {
  S square = 0;
  for (size_t h = 0; h < width; ++h) square += of[h] * of[h];
  const S rms = std::sqrt(square / static_cast<double>(width) + eps);
  for (size_t h = 0; h < width; ++h) of[h] /= rms;
}

// Rotates the pairs of a row's tail.
template <typename S>
void rotate_tail(const TailRope& args, int32_t position, S* tail) {
  const auto half = static_cast<size_t>(args.rotated / 2);
  const size_t table = static_cast<size_t>(position) * half;
  for (size_t i = 0; i < half; ++i) {
    const double c = args.cos[table + i];
    const double s = args.inverse ? -args.sin[table + i] : args.sin[table + i];
    const S a = tail[2 * i];
    const S b = tail[2 * i + 1];
    tail[2 * i] = a * c - b * s;
    tail[2 * i + 1] = a * s + b * c;
  }
}

// y [T, N, H] of x [T, N, H]; weight [H] or empty.
template <typename S>
std::vector<S> tail_rope(const TailRope& args, const std::vector<S>& x,
                         const std::vector<S>& weight) {
  const auto width = static_cast<size_t>(args.width);
  std::vector<S> y = x;
  for (size_t row = 0; row * width < x.size(); ++row) {
    S* of = y.data() + row * width;
    if (args.norm) divide_by_rms(of, width, args.eps);
    for (size_t h = 0; h < weight.size(); ++h) of[h] *= weight[h];
    const auto token = row / static_cast<size_t>(args.num_heads);
    rotate_tail(args, args.positions[token], of + (args.width - args.rotated));
  }
  return y;
}

}  // namespace strata::ops::ref
