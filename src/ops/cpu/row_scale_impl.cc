// SPDX-License-Identifier: Apache-2.0
// Dot products of rows as templates over the path; see cpu/simd.h for what may be called here.
#include "ops/cpu/row_scale.h"
#include "ops/cpu/this_path.h"

namespace strata::ops::cpu {

template <typename V>
float row_dot_piece(DType x_type, const void* x, const float* d_y, int64_t n) {
  float total = 0.0f;
  with_type<V>(x_type, [&]<typename X>() {
    auto sum = V::set1(0.0f);
    for_chunks<V>(n, [&](int64_t i, auto part) {
      sum = V::fma(V::load(d_y + i, part), V::load(static_cast<const X*>(x) + i, part), sum);
    });
    total = V::sum(sum);
  });
  return total;
}

template float row_dot_piece<ThisPath>(DType, const void*, const float*, int64_t);

}  // namespace strata::ops::cpu
