// SPDX-License-Identifier: Apache-2.0
// Row scatters and sums in plain loops over a scalar S: the oracle of ops/elementwise.h. D width.
#pragma once
#include <cstdint>
#include <vector>

namespace strata::ops::ref {

// y[rows[i]] += x[i], i ascending. S = float repeats the op's chain exactly.
template <typename S>
void scatter_add(const std::vector<S>& x, const std::vector<int32_t>& rows, int64_t dim,
                 std::vector<S>& y) {
  const auto width = static_cast<size_t>(dim);
  for (size_t i = 0; i < rows.size(); ++i) {
    for (size_t n = 0; n < width; ++n) {
      y[static_cast<size_t>(rows[i]) * width + n] += x[i * width + n];
    }
  }
}

template <typename S>
S sum_of_squares(const std::vector<S>& x) {
  S sum = 0;
  for (const S value : x) sum += value * value;
  return sum;
}

}  // namespace strata::ops::ref
