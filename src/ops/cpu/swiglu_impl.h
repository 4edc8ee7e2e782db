// SwiGLU kernels as templates over the path; see cpu/simd.h for what may be called here. Every load
// of a chunk comes before its stores: outputs may lie over inputs.
#pragma once
#include "ops/cpu/swiglu.h"

namespace strata::ops::cpu {

// y = g sigmoid(g) u scale
template <typename V>
void swiglu_piece(DType type, const void* gate, const void* up, float scale, void* y, int64_t n) {
  with_type<V>(type, [&]<typename X>() {
    for_chunks<V>(n, [&](int64_t i, auto part) {
      const auto g = V::load(static_cast<const X*>(gate) + i, part);
      const auto u = V::load(static_cast<const X*>(up) + i, part);
      V::store(static_cast<X*>(y) + i, g * sigmoid<V>(g) * u * V::set1(scale), part);
    });
  });
}

// With d = d_y scale: d_gate = d u sigmoid(g) (1 + g (1 - sigmoid(g))), d_up = d g sigmoid(g)
template <typename V>
void swiglu_backward_piece(DType type, const void* gate, const void* up, float scale,
                           DType d_y_type, const void* d_y, void* d_gate, void* d_up, int64_t n) {
  with_type<V>(type, [&]<typename X>() {
    with_type<V>(d_y_type, [&]<typename DY>() {
      for_chunks<V>(n, [&](int64_t i, auto part) {
        const auto g = V::load(static_cast<const X*>(gate) + i, part);
        const auto u = V::load(static_cast<const X*>(up) + i, part);
        const auto d = V::load(static_cast<const DY*>(d_y) + i, part) * V::set1(scale);
        auto rest = g;
        const auto s = sigmoid<V>(g, rest);
        const auto slope = s * V::fma(g, rest, V::set1(1.0f));
        V::store(static_cast<X*>(d_gate) + i, d * u * slope, part);
        V::store(static_cast<X*>(d_up) + i, d * (g * s), part);
      });
    });
  });
}

template <typename V>
float swiglu_dot_piece(DType type, const void* gate, const void* up, DType d_y_type,
                       const void* d_y, int64_t n) {
  float total = 0.0f;
  with_type<V>(type, [&]<typename X>() {
    with_type<V>(d_y_type, [&]<typename DY>() {
      auto sum = V::set1(0.0f);
      for_chunks<V>(n, [&](int64_t i, auto part) {
        const auto g = V::load(static_cast<const X*>(gate) + i, part);
        const auto u = V::load(static_cast<const X*>(up) + i, part);
        const auto d = V::load(static_cast<const DY*>(d_y) + i, part);
        sum = V::fma(d, g * sigmoid<V>(g) * u, sum);
      });
      total = V::sum(sum);
    });
  });
  return total;
}

}  // namespace strata::ops::cpu
