// SPDX-License-Identifier: Apache-2.0
// Gated norm kernels as templates over the path; see cpu/simd.h for what may be called here. Every
// load of a chunk comes before its stores: outputs may lie over inputs.
#include "ops/cpu/activation_impl.h"
#include "ops/cpu/gated_norm.h"
#include "ops/cpu/inv_rms_impl.h"
#include "ops/cpu/this_path.h"

namespace strata::ops::cpu {

template <typename V, typename X>
[[gnu::always_inline]] inline X* head_row(const GatedNormKernel& k, const HeadRows& heads,
                                          int64_t row) {
  return static_cast<X*>(heads.data) + row / k.num_heads * heads.token_stride +
         row % k.num_heads * heads.head_stride;
}

// y = x inv w silu(z)
template <typename V>
void gated_norm_rows(const GatedNormKernel& k, const HeadRows& y, int64_t begin, int64_t end) {
  with_type<V>(k.type, [&]<typename X>() {
    for (int64_t row = begin; row < end; ++row) {
      const X* x_row = head_row<V, const X>(k, k.x, row);
      const X* z_row = head_row<V, const X>(k, k.z, row);
      X* y_row = head_row<V, X>(k, y, row);
      const auto inv = V::set1(inv_rms_of<V>(x_row, k.dim, k.eps));
      for_chunks<V>(k.dim, [&](int64_t i, auto part) {
        const auto normed = V::load(x_row + i, part) * inv * V::load(k.weight + i, part);
        V::store(y_row + i, normed * Silu<V>::value(V::load(z_row + i, part)), part);
      });
    }
  });
}

template <typename V>
void compute_gated_inv_rms_rows(const GatedNormKernel& k, float* inv_rms, int64_t begin,
                                int64_t end) {
  with_type<V>(k.type, [&]<typename X>() {
    for (int64_t row = begin; row < end; ++row) {
      inv_rms[row] = inv_rms_of<V>(head_row<V, const X>(k, k.x, row), k.dim, k.eps);
    }
  });
}

// sum of g x, with g = d_y silu(z) w.
template <typename V, typename X, typename DY>
[[gnu::always_inline]] inline float gradient_dot_x(const GatedNormKernel& k, const X* x, const X* z,
                                                   const DY* d_y) {
  auto dot = V::set1(0.0f);
  for_chunks<V>(k.dim, [&](int64_t i, auto part) {
    const auto scaled = V::load(d_y + i, part) * V::load(k.weight + i, part);
    const auto g = scaled * Silu<V>::value(V::load(z + i, part));
    dot = V::fma(g, V::load(x + i, part), dot);
  });
  return V::sum(dot);
}

// y = x inv w silu(z) with inv = (mean(x^2) + eps)^-1/2, so with g = d_y silu(z) w:
// d_x = inv (g - x inv^2 mean(g x)), d_z = d_y x inv w silu'(z).
template <typename V, typename X, typename DY>
[[gnu::always_inline]] inline void gated_norm_backward_row(const GatedNormKernel& k, const X* x,
                                                           const X* z, const DY* d_y, X* d_x,
                                                           X* d_z) {
  const float inv = inv_rms_of<V>(x, k.dim, k.eps);
  const float dot = gradient_dot_x<V>(k, x, z, d_y);
  const auto scale = V::set1(inv);
  const auto slope = V::set1(dot / static_cast<float>(k.dim) * inv * inv);
  for_chunks<V>(k.dim, [&](int64_t i, auto part) {
    const auto value = V::load(x + i, part);
    const auto scaled = V::load(d_y + i, part) * V::load(k.weight + i, part);
    auto gate_slope = V::load(z + i, part);
    const auto g = scaled * Silu<V>::value_and_slope(gate_slope, gate_slope);
    V::store(d_x + i, scale * V::fnma(slope, value, g), part);
    V::store(d_z + i, scaled * (value * scale) * gate_slope, part);
  });
}

template <typename V>
void gated_norm_backward_rows(const GatedNormKernel& k, const HeadRows& d_y, DType d_y_type,
                              const HeadRows& d_x, const HeadRows& d_z, int64_t begin,
                              int64_t end) {
  with_type<V>(k.type, [&]<typename X>() {
    with_type<V>(d_y_type, [&]<typename DY>() {
      for (int64_t row = begin; row < end; ++row) {
        gated_norm_backward_row<V>(k, head_row<V, const X>(k, k.x, row),
                                   head_row<V, const X>(k, k.z, row),
                                   head_row<V, const DY>(k, d_y, row), head_row<V, X>(k, d_x, row),
                                   head_row<V, X>(k, d_z, row));
      }
    });
  });
}

// d_weight += sum over rows ascending of d_y silu(z) (x inv), one chain a column.
template <typename V>
void add_gated_norm_d_weight(const GatedNormKernel& k, const float* inv_rms, const HeadRows& d_y,
                             DType d_y_type, float* d_weight, int64_t begin, int64_t end) {
  with_type<V>(k.type, [&]<typename X>() {
    with_type<V>(d_y_type, [&]<typename DY>() {
      for_chunks<V>(end - begin, [&](int64_t i, auto part) {
        const int64_t n = begin + i;
        auto sum = V::load(d_weight + n, part);
        for (int64_t row = 0; row < k.num_rows; ++row) {
          const auto x = V::load(head_row<V, const X>(k, k.x, row) + n, part);
          const auto z = V::load(head_row<V, const X>(k, k.z, row) + n, part);
          const auto d = V::load(head_row<V, const DY>(k, d_y, row) + n, part);
          sum = V::fma(d * Silu<V>::value(z), x * V::set1(inv_rms[row]), sum);
        }
        V::store(d_weight + n, sum, part);
      });
    });
  });
}

template void gated_norm_rows<ThisPath>(const GatedNormKernel&, const HeadRows&, int64_t, int64_t);
template void compute_gated_inv_rms_rows<ThisPath>(const GatedNormKernel&, float*, int64_t,
                                                   int64_t);
template void gated_norm_backward_rows<ThisPath>(const GatedNormKernel&, const HeadRows&, DType,
                                                 const HeadRows&, const HeadRows&, int64_t,
                                                 int64_t);
template void add_gated_norm_d_weight<ThisPath>(const GatedNormKernel&, const float*,
                                                const HeadRows&, DType, float*, int64_t, int64_t);

}  // namespace strata::ops::cpu
