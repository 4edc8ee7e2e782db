// SPDX-License-Identifier: Apache-2.0
// The indexer's loss as templates over the path; see cpu/simd.h for what may be called here.
#include "ops/cpu/indexer_loss.h"
#include "ops/cpu/this_path.h"

namespace strata::ops::cpu {

template <typename V>
void compute_query_key_dots(const QueryHeads& query, const void* keys, int64_t count, float* dots) {
  with_type<V>(query.type, [&]<typename X>() {
    for (int64_t n = 0; n < query.num_heads; ++n) {
      const X* q = static_cast<const X*>(query.q) + n * query.width;
      for (int64_t i = 0; i < count; ++i) {
        const X* key = static_cast<const X*>(keys) + i * query.width;
        auto sum = V::set1(0.0f);
        for_chunks<V>(query.width, [&](int64_t h, auto part) {
          sum = V::fma(V::load(q + h, part), V::load(key + h, part), sum);
        });
        dots[i * query.num_heads + n] = V::sum(sum);
      }
    }
  });
}

template <typename V>
void axpy(DType type, float a, const void* x, int64_t width, float* y) {
  with_type<V>(type, [&]<typename X>() {
    for_chunks<V>(width, [&](int64_t h, auto part) {
      const auto value = V::load(static_cast<const X*>(x) + h, part);
      V::store(y + h, V::fma(V::set1(a), value, V::load(y + h, part)), part);
    });
  });
}

template void compute_query_key_dots<ThisPath>(const QueryHeads&, const void*, int64_t, float*);
template void axpy<ThisPath>(DType, float, const void*, int64_t, float*);

}  // namespace strata::ops::cpu
