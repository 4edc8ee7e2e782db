// SPDX-License-Identifier: Apache-2.0
// Activations of ops/gated.h as templates over the path; see cpu/simd.h for what may be called
// here.
#pragma once
#include "ops/cpu/simd.h"
#include "ops/gated.h"

namespace strata::ops::cpu {

// An activation gives value(x) = act(x), and value_and_slope(x, slope) = the same and act'(x).
template <typename V>
struct Silu {
  template <typename F>
  [[gnu::always_inline]] static inline F value(F x) {
    return x * sigmoid<V>(x);
  }
  // act' = sigmoid(x) (1 + x (1 - sigmoid(x)))
  template <typename F>
  [[gnu::always_inline]] static inline F value_and_slope(F x, F& slope) {
    F rest = x;
    const F s = sigmoid_and_complement<V>(x, rest);
    slope = s * V::fma(x, rest, V::set1(1.0f));
    return x * s;
  }
};

// With z = x (c1 + c3 x^2), c1 = 2 sqrt(2 / pi), c3 = 0.044715 c1: act = x sigmoid(z). z has an
// error of at most 4 units, which the exponential turns into 4 |z| units of the sigmoid. Beyond 16
// the sigmoid is 0 or 1 whatever z, so z and its slope stop there and nothing overflows.
template <typename V>
struct GeluTanh {
  static constexpr float kMost = 16.0f;
  static constexpr float kC1 = 1.5957691216057308f;
  static constexpr float kC3 = 0.07135481627260025f;
  template <typename F>
  [[gnu::always_inline]] static inline F bounded(F x) {
    return V::min(V::set1(kMost), V::max(V::set1(-kMost), x));
  }
  template <typename F>
  [[gnu::always_inline]] static inline F value(F x) {
    const F b = bounded(x);
    return x * sigmoid<V>(b * V::fma(b * b, V::set1(kC3), V::set1(kC1)));
  }
  // act' = sigmoid(z) (1 + x (1 - sigmoid(z)) z'), z' = c1 + 3 c3 x^2
  template <typename F>
  [[gnu::always_inline]] static inline F value_and_slope(F x, F& slope) {
    const F b = bounded(x);
    const F square = b * b;
    F rest = x;
    const F s = sigmoid_and_complement<V>(b * V::fma(square, V::set1(kC3), V::set1(kC1)), rest);
    const F d_z = V::fma(square, V::set1(3.0f * kC3), V::set1(kC1));
    slope = s * V::fma(b * rest, d_z, V::set1(1.0f));
    return x * s;
  }
};

template <typename V>
struct Sigmoid {
  template <typename F>
  [[gnu::always_inline]] static inline F value(F x) {
    return sigmoid<V>(x);
  }
  // act' = sigmoid(x) (1 - sigmoid(x))
  template <typename F>
  [[gnu::always_inline]] static inline F value_and_slope(F x, F& slope) {
    F rest = x;
    const F s = sigmoid_and_complement<V>(x, rest);
    slope = s * rest;
    return s;
  }
};

template <typename V>
struct Identity {
  template <typename F>
  [[gnu::always_inline]] static inline F value(F x) {
    return x;
  }
  template <typename F>
  [[gnu::always_inline]] static inline F value_and_slope(F x, F& slope) {
    slope = V::set1(1.0f);
    return x;
  }
};

// Calls body.operator()<Act>() with the tag of the activation.
template <typename V, typename Body>
[[gnu::always_inline]] inline void with_activation(Activation activation, Body&& body) {
  switch (activation) {
    case Activation::kSilu:
      return body.template operator()<Silu<V>>();
    case Activation::kGeluTanh:
      return body.template operator()<GeluTanh<V>>();
    case Activation::kSigmoid:
      return body.template operator()<Sigmoid<V>>();
    case Activation::kIdentity:
      return body.template operator()<Identity<V>>();
  }
}

}  // namespace strata::ops::cpu
