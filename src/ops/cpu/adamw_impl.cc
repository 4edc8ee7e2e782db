// SPDX-License-Identifier: Apache-2.0
// The AdamW kernel as a template over the path; see cpu/simd.h for what may be called here.
#include "ops/cpu/adamw.h"
#include "ops/cpu/this_path.h"

namespace strata::ops::cpu {

template <typename V>
void adamw_piece(const AdamWKernel& k, const float* g, float* p, float* m, float* v, int64_t n) {
  const auto grad_scale = V::set1(k.grad_scale);
  const auto beta1 = V::set1(k.beta1);
  const auto one_minus_beta1 = V::set1(k.one_minus_beta1);
  const auto beta2 = V::set1(k.beta2);
  const auto one_minus_beta2 = V::set1(k.one_minus_beta2);
  const auto decay = V::set1(k.decay);
  const auto step_size = V::set1(k.step_size);
  const auto root_correction = V::set1(k.root_correction);
  const auto eps = V::set1(k.eps);
  for_chunks<V>(n, [&](int64_t i, auto part) {
    const auto grad = V::load(g + i, part) * grad_scale;
    const auto first = V::fma(beta1, V::load(m + i, part), one_minus_beta1 * grad);
    const auto second = V::fma(beta2, V::load(v + i, part), one_minus_beta2 * (grad * grad));
    V::store(m + i, first, part);
    V::store(v + i, second, part);
    const auto update = first / V::fma(V::sqrt(second), root_correction, eps);
    V::store(p + i, V::fnma(step_size, update, V::load(p + i, part) * decay), part);
  });
}

template void adamw_piece<ThisPath>(const AdamWKernel&, const float*, float*, float*, float*,
                                    int64_t);

}  // namespace strata::ops::cpu
