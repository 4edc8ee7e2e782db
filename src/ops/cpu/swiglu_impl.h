// SwiGLU kernels as templates over the path; see cpu/simd.h for what may be called here. Every load
// of a chunk comes before its stores: outputs may lie over inputs.
#pragma once
#include "ops/cpu/swiglu.h"

namespace strata::ops::cpu {

// y = g sigmoid(g) u
template <typename V>
void swiglu_piece(DType type, const void* gate, const void* up, void* y, int64_t n) {
  with_type<V>(type, [&]<typename X>() {
    for_chunks<V>(n, [&](int64_t i, auto part) {
      const auto g = V::load(static_cast<const X*>(gate) + i, part);
      const auto u = V::load(static_cast<const X*>(up) + i, part);
      V::store(static_cast<X*>(y) + i, g * sigmoid<V>(g) * u, part);
    });
  });
}

// d_gate = d_y u sigmoid(g) (1 + g (1 - sigmoid(g))), d_up = d_y g sigmoid(g)
template <typename V>
void swiglu_backward_piece(DType type, const void* gate, const void* up, DType d_y_type,
                           const void* d_y, void* d_gate, void* d_up, int64_t n) {
  with_type<V>(type, [&]<typename X>() {
    with_type<V>(d_y_type, [&]<typename DY>() {
      for_chunks<V>(n, [&](int64_t i, auto part) {
        const auto g = V::load(static_cast<const X*>(gate) + i, part);
        const auto u = V::load(static_cast<const X*>(up) + i, part);
        const auto d = V::load(static_cast<const DY*>(d_y) + i, part);
        auto rest = g;
        const auto s = sigmoid<V>(g, rest);
        const auto slope = s * V::fma(g, rest, V::set1(1.0f));
        V::store(static_cast<X*>(d_gate) + i, d * u * slope, part);
        V::store(static_cast<X*>(d_up) + i, d * (g * s), part);
      });
    });
  });
}

}  // namespace strata::ops::cpu
