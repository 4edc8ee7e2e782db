// SPDX-License-Identifier: Apache-2.0
// Gated activations as templates over the path; see cpu/simd.h for what may be called here. Every
// load of a chunk comes before its stores: outputs may lie over inputs.
#include "ops/cpu/activation_impl.h"
#include "ops/cpu/gated.h"
#include "ops/cpu/this_path.h"

namespace strata::ops::cpu {

// y = act(g) u scale
template <typename V>
void act_and_mul_piece(const GatedInputs& in, void* y, int64_t n) {
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
void act_and_mul_backward_piece(const GatedInputs& in, DType d_y_type, const void* d_y,
                                void* d_gate, void* d_up, int64_t n) {
  with_activation<V>(in.activation, [&]<typename Act>() {
    with_type<V>(in.type, [&]<typename X>() {
      with_type<V>(d_y_type, [&]<typename DY>() {
        for_chunks<V>(n, [&](int64_t i, auto part) {
          const auto g = V::load(static_cast<const X*>(in.gate) + i, part);
          const auto u = V::load(static_cast<const X*>(in.up) + i, part);
          const auto d = V::load(static_cast<const DY*>(d_y) + i, part) * V::set1(in.scale);
          auto slope = g;
          const auto value = Act::value_and_slope(g, slope);
          V::store(static_cast<X*>(d_gate) + i, d * u * slope, part);
          V::store(static_cast<X*>(d_up) + i, d * value, part);
        });
      });
    });
  });
}

template <typename V>
float act_and_mul_dot_piece(const GatedInputs& in, DType d_y_type, const void* d_y, int64_t n) {
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

template void act_and_mul_piece<ThisPath>(const GatedInputs&, void*, int64_t);
template void act_and_mul_backward_piece<ThisPath>(const GatedInputs&, DType, const void*, void*,
                                                   void*, int64_t);
template float act_and_mul_dot_piece<ThisPath>(const GatedInputs&, DType, const void*, int64_t);

}  // namespace strata::ops::cpu
