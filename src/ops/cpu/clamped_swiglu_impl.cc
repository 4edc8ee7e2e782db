// SPDX-License-Identifier: Apache-2.0
// Clamped SwiGLU as templates over the path; see cpu/simd.h for what may be called here. Every load
// of a chunk comes before its stores: outputs may lie over inputs.
#include "ops/cpu/activation_impl.h"
#include "ops/cpu/clamped_swiglu.h"
#include "ops/cpu/this_path.h"

namespace strata::ops::cpu {

// min and max take their second operand when either is NaN, so that a NaN stays one.
template <typename V, typename F>
[[gnu::always_inline]] inline F clamped_up(F up, float limit) {
  return V::max(V::set1(-limit), V::min(V::set1(limit), up));
}

template <typename V>
void clamped_swiglu_row(const ClampedInputs& in, void* y, int64_t n) {
  with_type<V>(in.type, [&]<typename X>() {
    for_chunks<V>(n, [&](int64_t i, auto part) {
      const auto g = V::min(V::set1(in.limit), V::load(static_cast<const X*>(in.gate) + i, part));
      const auto u = clamped_up<V>(V::load(static_cast<const X*>(in.up) + i, part), in.limit);
      V::store(static_cast<X*>(y) + i, Silu<V>::value(g) * u * V::set1(in.scale), part);
    });
  });
}

// With g = min(gate, limit), u = clamp(up) and d = d_y scale: d_gate = d u silu'(g) where gate is
// not beyond the limit, d_up = d silu(g) where up is not.
template <typename V>
float clamped_swiglu_backward_row(const ClampedInputs& in, DType d_y_type, const void* d_y,
                                  void* d_gate, void* d_up, int64_t n) {
  float total = 0.0f;
  with_type<V>(in.type, [&]<typename X>() {
    with_type<V>(d_y_type, [&]<typename DY>() {
      const auto limit = V::set1(in.limit);
      const auto zero = V::set1(0.0f);
      auto sum = zero;
      for_chunks<V>(n, [&](int64_t i, auto part) {
        const auto gate = V::load(static_cast<const X*>(in.gate) + i, part);
        const auto up = V::load(static_cast<const X*>(in.up) + i, part);
        const auto d = V::load(static_cast<const DY*>(d_y) + i, part);
        const auto u = clamped_up<V>(up, in.limit);
        auto slope = gate;
        const auto value = Silu<V>::value_and_slope(V::min(limit, gate), slope);
        sum = V::fma(d, value * u, sum);
        const auto scaled = d * V::set1(in.scale);
        V::store(static_cast<X*>(d_gate) + i,
                 V::select_negative(limit - gate, zero, scaled * u * slope), part);
        V::store(static_cast<X*>(d_up) + i,
                 V::select_negative(limit - V::abs(up), zero, scaled * value), part);
      });
      total = V::sum(sum);
    });
  });
  return total;
}

template void clamped_swiglu_row<ThisPath>(const ClampedInputs&, void*, int64_t);
template float clamped_swiglu_backward_row<ThisPath>(const ClampedInputs&, DType, const void*,
                                                     void*, void*, int64_t);

}  // namespace strata::ops::cpu
