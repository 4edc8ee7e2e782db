// Gated activations as templates over the path; see cpu/simd.h for what may be called here. Every
// load of a chunk comes before its stores: outputs may lie over inputs.
#pragma once
#include "ops/cpu/gated.h"

namespace strata::ops::cpu {

// An activation gives value(x) = act(x), and value(x, slope) = the same and act'(x).
template <typename V>
struct Silu {
  template <typename F>
  [[gnu::always_inline]] static inline F value(F x) {
    return x * sigmoid<V>(x);
  }
  // act' = sigmoid(x) (1 + x (1 - sigmoid(x)))
  template <typename F>
  [[gnu::always_inline]] static inline F value(F x, F& slope) {
    F rest = x;
    const F s = sigmoid<V>(x, rest);
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
  [[gnu::always_inline]] static inline F value(F x, F& slope) {
    const F b = bounded(x);
    const F square = b * b;
    F rest = x;
    const F s = sigmoid<V>(b * V::fma(square, V::set1(kC3), V::set1(kC1)), rest);
    const F d_z = V::fma(square, V::set1(3.0f * kC3), V::set1(kC1));
    slope = s * V::fma(b * rest, d_z, V::set1(1.0f));
    return x * s;
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
  }
}

// y = act(g) u scale
template <typename V>
void gated_piece(const GatedInputs& in, void* y, int64_t n) {
  with_activation<V>(in.activation, [&]<typename Act>() {
    with_type<V>(in.type, [&]<typename X>() {
      for_chunks<V>(n, [&](int64_t i, auto part) {
        const auto g = V::load(static_cast<const X*>(in.gate) + i, part);
        const auto u = V::load(static_cast<const X*>(in.up) + i, part);
        V::store(static_cast<X*>(y) + i, Act::value(g) * u * V::set1(in.scale), part);
      });
    });
  });
}

// With d = d_y scale: d_gate = d u act'(g), d_up = d act(g)
template <typename V>
void gated_backward_piece(const GatedInputs& in, DType d_y_type, const void* d_y, void* d_gate,
                          void* d_up, int64_t n) {
  with_activation<V>(in.activation, [&]<typename Act>() {
    with_type<V>(in.type, [&]<typename X>() {
      with_type<V>(d_y_type, [&]<typename DY>() {
        for_chunks<V>(n, [&](int64_t i, auto part) {
          const auto g = V::load(static_cast<const X*>(in.gate) + i, part);
          const auto u = V::load(static_cast<const X*>(in.up) + i, part);
          const auto d = V::load(static_cast<const DY*>(d_y) + i, part) * V::set1(in.scale);
          auto slope = g;
          const auto value = Act::value(g, slope);
          V::store(static_cast<X*>(d_gate) + i, d * u * slope, part);
          V::store(static_cast<X*>(d_up) + i, d * value, part);
        });
      });
    });
  });
}

template <typename V>
float gated_dot_piece(const GatedInputs& in, DType d_y_type, const void* d_y, int64_t n) {
  float total = 0.0f;
  with_activation<V>(in.activation, [&]<typename Act>() {
    with_type<V>(in.type, [&]<typename X>() {
      with_type<V>(d_y_type, [&]<typename DY>() {
        auto sum = V::set1(0.0f);
        for_chunks<V>(n, [&](int64_t i, auto part) {
          const auto g = V::load(static_cast<const X*>(in.gate) + i, part);
          const auto u = V::load(static_cast<const X*>(in.up) + i, part);
          const auto d = V::load(static_cast<const DY*>(d_y) + i, part);
          sum = V::fma(d, Act::value(g) * u, sum);
        });
        total = V::sum(sum);
      });
    });
  });
  return total;
}

}  // namespace strata::ops::cpu
