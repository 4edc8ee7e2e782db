// SPDX-License-Identifier: Apache-2.0
// The indexer's scores as templates over the path; see cpu/simd.h for what may be called here.
#include "ops/cpu/indexer.h"
#include "ops/cpu/this_path.h"

namespace strata::ops::cpu {

template <typename V>
void compute_index_scores(const IndexerKernel& k, const void* first, int64_t stride, int64_t count,
                          float* scores) {
  with_type<V>(k.type, [&]<typename X>() {
    for (int64_t i = 0; i < count; ++i) {
      const X* key = static_cast<const X*>(first) + i * stride;
      float score = 0.0f;
      for (int64_t n = 0; n < k.num_heads; ++n) {
        const X* q = static_cast<const X*>(k.q) + n * k.width;
        auto sum = V::set1(0.0f);
        for_chunks<V>(k.width, [&](int64_t h, auto part) {
          sum = V::fma(V::load(q + h, part), V::load(key + h, part), sum);
        });
        const float dot = V::sum(sum);
        // A comparison that lets NaN through.
        if (!(dot <= 0.0f)) score += k.weights[n] * dot;
      }
      scores[i] = score;
    }
  });
}

template void compute_index_scores<ThisPath>(const IndexerKernel&, const void*, int64_t, int64_t,
                                             float*);

}  // namespace strata::ops::cpu
