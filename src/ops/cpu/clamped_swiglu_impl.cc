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

// What a form makes of clamped g and u: value and slope of g sigmoid(alpha g), and the factor of u.
template <typename V>
struct PlainSwiglu : Silu<V> {
  explicit PlainSwiglu(const SwigluForm&) {}
  template <typename F>
  [[gnu::always_inline]] F factor(F u) const {
    return u;
  }
};

template <typename V>
struct ShiftedSwiglu {
  float alpha;
  float offset;
  explicit ShiftedSwiglu(const SwigluForm& form) : alpha(form.alpha), offset(form.up_offset) {}
  template <typename F>
  [[gnu::always_inline]] F factor(F u) const {
    return u + V::set1(offset);
  }
  template <typename F>
  [[gnu::always_inline]] F value(F g) const {
    return g * sigmoid<V>(g * V::set1(alpha));
  }
  // sigmoid(z) (1 + z (1 - sigmoid(z))), z = alpha g
  template <typename F>
  [[gnu::always_inline]] F value_and_slope(F g, F& slope) const {
    const F z = g * V::set1(alpha);
    F rest = z;
    const F s = sigmoid_and_complement<V>(z, rest);
    slope = s * V::fma(z, rest, V::set1(1.0f));
    return g * s;
  }
};

template <typename V, typename Body>
[[gnu::always_inline]] inline void with_form(const SwigluForm& form, Body&& body) {
  if (form.alpha == 1.0f && form.up_offset == 0.0f) return body(PlainSwiglu<V>(form));
  body(ShiftedSwiglu<V>(form));
}

template <typename V>
void clamped_swiglu_row(const ClampedInputs& in, void* y, int64_t n) {
  with_type<V>(in.type, [&]<typename X>() {
    with_form<V>(in.form, [&](const auto& swiglu) {
      for_chunks<V>(n, [&](int64_t i, auto part) {
        const auto g =
            V::min(V::set1(in.form.limit), V::load(static_cast<const X*>(in.gate) + i, part));
        const auto u =
            clamped_up<V>(V::load(static_cast<const X*>(in.up) + i, part), in.form.limit);
        V::store(static_cast<X*>(y) + i, swiglu.value(g) * swiglu.factor(u) * V::set1(in.scale),
                 part);
      });
    });
  });
}

// With g = min(gate, limit), u = clamp(up) and d = d_y scale: d_gate = d factor(u) value'(g) where
// gate is not beyond the limit, d_up = d value(g) where up is not.
template <typename V>
float clamped_swiglu_backward_row(const ClampedInputs& in, DType d_y_type, const void* d_y,
                                  void* d_gate, void* d_up, int64_t n) {
  float total = 0.0f;
  with_type<V>(in.type, [&]<typename X>() {
    with_type<V>(d_y_type, [&]<typename DY>() {
      with_form<V>(in.form, [&](const auto& swiglu) {
        const auto limit = V::set1(in.form.limit);
        const auto zero = V::set1(0.0f);
        auto sum = zero;
        for_chunks<V>(n, [&](int64_t i, auto part) {
          const auto gate = V::load(static_cast<const X*>(in.gate) + i, part);
          const auto up = V::load(static_cast<const X*>(in.up) + i, part);
          const auto d = V::load(static_cast<const DY*>(d_y) + i, part);
          const auto factor = swiglu.factor(clamped_up<V>(up, in.form.limit));
          auto slope = gate;
          const auto value = swiglu.value_and_slope(V::min(limit, gate), slope);
          sum = V::fma(d, value * factor, sum);
          const auto scaled = d * V::set1(in.scale);
          V::store(static_cast<X*>(d_gate) + i,
                   V::select_negative(limit - gate, zero, scaled * factor * slope), part);
          V::store(static_cast<X*>(d_up) + i,
                   V::select_negative(limit - V::abs(up), zero, scaled * value), part);
        });
        total = V::sum(sum);
      });
    });
  });
  return total;
}

template void clamped_swiglu_row<ThisPath>(const ClampedInputs&, void*, int64_t);
template float clamped_swiglu_backward_row<ThisPath>(const ClampedInputs&, DType, const void*,
                                                     void*, void*, int64_t);

}  // namespace strata::ops::cpu
