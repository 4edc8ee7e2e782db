// SPDX-License-Identifier: Apache-2.0
// cap tanh(x / cap) as a template over the path; see cpu/simd.h for what may be called here.
#pragma once
#include "ops/cpu/simd.h"

namespace strata::ops::cpu {

// tanh(x) within 3 ulp; 1 or -1 beyond 9.1, NaN for NaN. Below 0.625 it is x + x^3 p(x^2), with the
// polynomial of Cephes' tanhf; else (1 - e) / (1 + e) with e = exp(-2 |x|), and x's sign.
template <typename V, typename F>
[[gnu::always_inline]] inline F tanh(F x) {
  const F size = V::abs(x);
  const F e = exp_below_overflow<V>(V::set1(-2.0f) * size);
  const F large = (V::set1(1.0f) - e) / (V::set1(1.0f) + e);
  const F square = x * x;
  F p = V::fma(V::set1(-5.70498872745e-3f), square, V::set1(2.06390887954e-2f));
  p = V::fma(p, square, V::set1(-5.37397155531e-2f));
  p = V::fma(p, square, V::set1(1.33314422036e-1f));
  p = V::fma(p, square, V::set1(-3.33332819422e-1f));
  const F small = V::fma(p * square, x, x);
  return V::select_negative(size - V::set1(0.625f), small,
                            V::select_negative(x, V::set1(0.0f) - large, large));
}

// x becomes tanh(scale x), in so many vectors of lanes of rows that are `stride` apart. K is of one
// compilation alone, with the lanes K::V: a name of V's would be of several, and one of them taken.
template <typename K>
[[gnu::noinline]] void take_tanh(float scale, int64_t rows, int64_t vectors, int64_t stride,
                                 float* x) {
  using V = typename K::V;
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t j = 0; j < vectors; ++j) {
      float* at = x + r * stride + kLanes * j;
      V::store(at, tanh<V>(V::load(at, Whole{}) * V::set1(scale)), Whole{});
    }
  }
}

// What the gradient of a capped y is multiplied by: 1 - (y / cap)^2.
template <typename V, typename F>
[[gnu::always_inline]] inline F soft_cap_slope(F y, F inverse_cap) {
  const F t = y * inverse_cap;
  return V::fnma(t, t, V::set1(1.0f));
}

}  // namespace strata::ops::cpu
