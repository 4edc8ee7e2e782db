// SPDX-License-Identifier: Apache-2.0
// Biases of groups as templates over the path; see cpu/simd.h for what may be called here.
#include "ops/cpu/group_bias.h"
#include "ops/cpu/this_path.h"

namespace strata::ops::cpu {

template <typename V>
void add_scaled_row(DType x_type, const void* x, float factor, float* y, int64_t n) {
  with_type<V>(x_type, [&]<typename X>() {
    for_chunks<V>(n, [&](int64_t i, auto part) {
      const auto value = V::load(static_cast<const X*>(x) + i, part);
      V::store(y + i, V::fma(V::set1(factor), value, V::load(y + i, part)), part);
    });
  });
}

template <typename V>
float dot_rows(DType x_type, const void* x, const float* y, int64_t n) {
  float total = 0.0f;
  with_type<V>(x_type, [&]<typename X>() {
    auto sum = V::set1(0.0f);
    for_chunks<V>(n, [&](int64_t i, auto part) {
      sum = V::fma(V::load(static_cast<const X*>(x) + i, part), V::load(y + i, part), sum);
    });
    total = V::sum(sum);
  });
  return total;
}

template void add_scaled_row<ThisPath>(DType, const void*, float, float*, int64_t);
template float dot_rows<ThisPath>(DType, const void*, const float*, int64_t);

}  // namespace strata::ops::cpu
