// SPDX-License-Identifier: Apache-2.0
// DeepSeek-V4's attention of one query and head in plain loops over a scalar S: the oracle of
// ops/sparse_attention.h.
#pragma once
#include <cmath>
#include <complex>
#include <vector>

namespace strata::ops::ref {

// out [H] of q [H], the keys [count, H] that it sees, and the sink.
template <typename S>
std::vector<S> sparse_attention(const std::vector<S>& q, const std::vector<S>& keys, S sink,
                                double scale) {
  const size_t width = q.size();
  std::vector<S> out(width);
  S sum = std::exp(sink);
  for (size_t j = 0; j * width < keys.size(); ++j) {
    S score = 0;
    for (size_t h = 0; h < width; ++h) score += q[h] * keys[j * width + h];
    const S p = std::exp(score * scale);
    sum += p;
    for (size_t h = 0; h < width; ++h) out[h] += p * keys[j * width + h];
  }
  for (S& value : out) value /= sum;
  return out;
}

}  // namespace strata::ops::ref
