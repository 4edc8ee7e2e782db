// SPDX-License-Identifier: Apache-2.0
// The gradient of attention's sinks. T tokens, N heads.
#pragma once
#include <cmath>
#include <span>

#include "ops/cpu/dispatch.h"

namespace strata::ops::cpu {

// d_sinks [N] -= sum of exp(sink - lse) delta over the rows of the segments, ascending: the sink
// has no value. lse and delta [T, N].
template <typename Segment>
void add_d_sinks(CpuBackend& backend, std::span<const Segment> segments, TensorView sinks,
                 TensorView lse, TensorView delta, TensorView d_sinks) {
  const int64_t heads = sinks.shape[0];
  parallel_for(backend, heads, delta.rows() * 16, [&](int64_t begin, int64_t end) {
    for (const Segment& segment : segments) {
      for (int64_t row = segment.begin; row < segment.end; ++row) {
        for (int64_t n = begin; n < end; ++n) {
          const int64_t at = row * heads + n;
          const float p = std::exp(sinks.f32()[n] - lse.f32()[at]);
          d_sinks.f32()[n] -= p * delta.f32()[at];
        }
      }
    }
  });
}

}  // namespace strata::ops::cpu
