// SPDX-License-Identifier: Apache-2.0
// Sixteen fp32 lanes with one meaning on every CPU path: Avx512 (one register), Avx2 (two) and
// Scalar (loops). The same expression gives the same bits on all three: each lane is computed
// alone, fma is written out, and sums over lanes use one tree.
//
// A kernel is a template over the path's tag, `template <typename V> void kernel(...)`, defined and
// instantiated in <op>_impl.cc, which is compiled once for every path (cpu/this_path.h), so an
// inline function that two of the compilations emit under one name could bring wide instructions to
// a CPU that lacks them. Hence the rule for code reached from an _impl file: only templates over V
// (or over its lane type), lambdas inside such templates and compiler builtins; nothing inline from
// the standard library or from shared headers.
//
// What V provides (F is its type of 16 floats; Whole and Part say how many lanes a memory access
// covers): set1, load, store, fma(a, b, c) = a b + c, fnma(a, b, c) = c - a b, max and min (x86:
// the second operand when either is NaN), abs, sqrt, select_negative(x, a, b) = x < 0 ? a : b,
// scale_by_power(x, n) = x 2^n rounded once, sum and max_lane; F has + - * /.
#pragma once
#include <cstdint>

#include "tensor/dtype.h"

namespace strata::ops::cpu {

constexpr int kLanes = 16;

struct Scalar;
struct Avx2;
struct Avx512;

// A memory access of all lanes, or of the first `lanes` (1..15); the other lanes load as `fill`.
struct Whole {};
struct Part {
  int lanes;
};

// Calls body(i, whole or part) for i = 0, 16, ... < n.
template <typename V, typename Body>
[[gnu::always_inline]] inline void for_chunks(int64_t n, Body&& body) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) body(i, Whole{});
  if (i < n) body(i, Part{static_cast<int>(n - i)});
}

// Calls body.operator()<float>() or <Bf16>().
template <typename V, typename Body>
[[gnu::always_inline]] inline void with_type(DType dtype, Body&& body) {
  if (dtype == DType::kF32) {
    body.template operator()<float>();
  } else {
    body.template operator()<Bf16>();
  }
}

// e^x for x <= 88.7: within 1.01 ulp (every float was tried), gradual underflow, 0 below -104, NaN
// for NaN. x = n ln 2 + r with |r| <= ln 2 / 2; e^r = 1 + r + r^2 q(r), q a minimax polynomial of
// degree 4 (relative error of e^r 3.2e-9).
template <typename V, typename F>
[[gnu::always_inline]] inline F exp_below_overflow(F x) {
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
  x = V::max(V::set1(-104.0f), x);
  const F n = V::fma(x, V::set1(0x1.715476p+0f), V::set1(kRound)) - V::set1(kRound);
  const F r = V::fnma(n, V::set1(-0x1.05c61p-29f), V::fnma(n, V::set1(0x1.62e43p-1f), x));
  F q = V::fma(V::set1(0x1.6a1f62p-10f), r, V::set1(0x1.123ccap-7f));
  q = V::fma(q, r, V::set1(0x1.555904p-5f));
  q = V::fma(q, r, V::set1(0x1.55548ep-3f));
  q = V::fma(q, r, V::set1(0x1.fffffcp-2f));
  const F p = V::fma(r * r, q, r) + V::set1(1.0f);
  return V::scale_by_power(p, n);
}

// The same for every x: infinity above 88.73.
template <typename V, typename F>
[[gnu::always_inline]] inline F exp(F x) {
  return exp_below_overflow<V>(V::min(V::set1(89.0f), x));
}

// sigmoid(x), without overflow: with e = exp(-|x|) it is 1 / (1 + e), or e / (1 + e) for negative
// x.
template <typename V, typename F>
[[gnu::always_inline]] inline F sigmoid(F x) {
  const F e = exp_below_overflow<V>(V::set1(0.0f) - V::abs(x));
  return V::select_negative(x, e, V::set1(1.0f)) / (V::set1(1.0f) + e);
}

// sigmoid(x) to the bit, and 1 - sigmoid(x) without cancellation.
template <typename V, typename F>
[[gnu::always_inline]] inline F sigmoid_and_complement(F x, F& complement) {
  const F e = exp_below_overflow<V>(V::set1(0.0f) - V::abs(x));
  const F sum = V::set1(1.0f) + e;
  const F quotient = V::set1(1.0f) / sum;
  complement = V::select_negative(x, quotient, e * quotient);
  return V::select_negative(x, e, V::set1(1.0f)) / sum;
}

}  // namespace strata::ops::cpu
