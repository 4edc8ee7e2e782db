// SPDX-License-Identifier: Apache-2.0
// RMSNorm kernels as templates over the path; see cpu/simd.h for what may be called here.
#include "ops/cpu/inv_rms_impl.h"
#include "ops/cpu/rms_norm.h"
#include "ops/cpu/this_path.h"

namespace strata::ops::cpu {

template <typename V>
void add_offset(const float* weight, float offset, float* sum, int64_t n) {
  for_chunks<V>(n, [&](int64_t i, auto part) {
    V::store(sum + i, V::set1(offset) + V::load(weight + i, part), part);
  });
}

template <typename V>
void compute_inv_rms_rows(const RmsNormKernel& k, float* inv_rms, int64_t begin, int64_t end) {
  with_type<V>(k.x_type, [&]<typename X>() {
    const X* x = static_cast<const X*>(k.x);
    for (int64_t t = begin; t < end; ++t) {
      inv_rms[t] = inv_rms_of<V>(x + t * k.x_stride, k.dim, k.eps);
    }
  });
}

template <typename V, typename X, typename Y>
void rms_norm_typed(const RmsNormKernel& k, Y* y, int64_t y_stride, float* inv_rms, int64_t begin,
                    int64_t end) {
  for (int64_t t = begin; t < end; ++t) {
    const X* x_row = static_cast<const X*>(k.x) + t * k.x_stride;
    Y* y_row = y + t * y_stride;
    const float inv = inv_rms_of<V>(x_row, k.dim, k.eps);
    if (inv_rms != nullptr) inv_rms[t] = inv;
    const auto scale = V::set1(inv);
    for_chunks<V>(k.dim, [&](int64_t i, auto part) {
      V::store(y_row + i, V::load(x_row + i, part) * scale * V::load(k.weight + i, part), part);
    });
  }
}

template <typename V>
void rms_norm_rows(const RmsNormKernel& k, void* y, DType y_type, int64_t y_stride, float* inv_rms,
                   int64_t begin, int64_t end) {
  with_type<V>(k.x_type, [&]<typename X>() {
    with_type<V>(y_type, [&]<typename Y>() {
      rms_norm_typed<V, X, Y>(k, static_cast<Y*>(y), y_stride, inv_rms, begin, end);
    });
  });
}

// y = x inv w with inv = (mean(x^2) + eps)^-1/2, so with g = d_y w:
// d_x += inv (g - x inv^2 mean(g x)).
template <typename V>
void rms_norm_backward_rows(const RmsNormKernel& k, const float* inv_rms, const float* d_y,
                            int64_t d_y_stride, float* d_x, int64_t d_x_stride, int64_t begin,
                            int64_t end) {
  with_type<V>(k.x_type, [&]<typename X>() {
    for (int64_t t = begin; t < end; ++t) {
      const X* x_row = static_cast<const X*>(k.x) + t * k.x_stride;
      const float* d_y_row = d_y + t * d_y_stride;
      float* d_x_row = d_x + t * d_x_stride;
      auto dot = V::set1(0.0f);
      for_chunks<V>(k.dim, [&](int64_t i, auto part) {
        const auto g = V::load(d_y_row + i, part) * V::load(k.weight + i, part);
        dot = V::fma(g, V::load(x_row + i, part), dot);
      });
      const float inv = inv_rms[t];
      const auto scale = V::set1(inv);
      const auto slope = V::set1(V::sum(dot) / static_cast<float>(k.dim) * inv * inv);
      for_chunks<V>(k.dim, [&](int64_t i, auto part) {
        const auto g = V::load(d_y_row + i, part) * V::load(k.weight + i, part);
        const auto centred = V::fnma(slope, V::load(x_row + i, part), g);
        V::store(d_x_row + i, V::fma(scale, centred, V::load(d_x_row + i, part)), part);
      });
    }
  });
}

// d_weight += sum over t ascending of d_y (x inv), one chain a column.
template <typename V>
void add_rms_norm_d_weight(const RmsNormKernel& k, const float* inv_rms, const float* d_y,
                           int64_t d_y_stride, float* d_weight, int64_t begin, int64_t end) {
  with_type<V>(k.x_type, [&]<typename X>() {
    const X* x = static_cast<const X*>(k.x);
    for (int64_t t = 0; t < k.num_rows; ++t) {
      const auto inv = V::set1(inv_rms[t]);
      for_chunks<V>(end - begin, [&](int64_t i, auto part) {
        const int64_t n = begin + i;
        const auto x_hat = V::load(x + t * k.x_stride + n, part) * inv;
        const auto sum = V::load(d_weight + n, part);
        V::store(d_weight + n, V::fma(V::load(d_y + t * d_y_stride + n, part), x_hat, sum), part);
      });
    }
  });
}

template void add_offset<ThisPath>(const float*, float, float*, int64_t);
template void rms_norm_rows<ThisPath>(const RmsNormKernel&, void*, DType, int64_t, float*, int64_t,
                                      int64_t);
template void compute_inv_rms_rows<ThisPath>(const RmsNormKernel&, float*, int64_t, int64_t);
template void rms_norm_backward_rows<ThisPath>(const RmsNormKernel&, const float*, const float*,
                                               int64_t, float*, int64_t, int64_t, int64_t);
template void add_rms_norm_d_weight<ThisPath>(const RmsNormKernel&, const float*, const float*,
                                              int64_t, float*, int64_t, int64_t);

}  // namespace strata::ops::cpu
