// SPDX-License-Identifier: Apache-2.0
// The inverse root mean square that norms share, as a template over the path; see cpu/simd.h for
// what may be called here.
#pragma once
#include "ops/cpu/simd.h"

namespace strata::ops::cpu {

// 1 / sqrt(mean(x^2) + eps): lane j sums elements j, j + 16, ...; then the lanes' tree.
template <typename V, typename X>
[[gnu::always_inline]] inline float inv_rms_of(const X* x, int64_t dim, float eps) {
  auto sum = V::set1(0.0f);
  for_chunks<V>(dim, [&](int64_t i, auto part) {
    const auto value = V::load(x + i, part);
    sum = V::fma(value, value, sum);
  });
  const float mean = V::sum(sum) / static_cast<float>(dim);
  return 1.0f / __builtin_sqrtf(mean + eps);
}

}  // namespace strata::ops::cpu
