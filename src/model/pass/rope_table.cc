// SPDX-License-Identifier: Apache-2.0
#include "model/pass/rope_table.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "ops/elementwise.h"

namespace strata::model {

void RopeTable::reserve(int64_t num_positions) {
  if (num_positions <= num_positions_) return;
  constexpr int64_t kSmallest = 1024;
  const int64_t count = std::max({num_positions, 2 * num_positions_, kSmallest});
  const auto pairs = static_cast<int64_t>(frequencies_.size());
  std::vector<float> cos(static_cast<size_t>(count * pairs));
  std::vector<float> sin(cos.size());
  for (int64_t position = 0; position < count; ++position) {
    for (int64_t pair = 0; pair < pairs; ++pair) {
      const double angle = static_cast<double>(position) * frequencies_[static_cast<size_t>(pair)];
      const auto at = static_cast<size_t>(position * pairs + pair);
      cos[at] = static_cast<float>(std::cos(angle) * factor_);
      sin[at] = static_cast<float>(std::sin(angle) * factor_);
    }
  }
  Tensor new_cos(backend_.allocator(), DType::kF32, {count, pairs});
  Tensor new_sin(backend_.allocator(), DType::kF32, {count, pairs});
  ops::from_host(backend_, cos, new_cos);
  ops::from_host(backend_, sin, new_sin);
  // Without memory for all of it nothing has changed.
  cos_ = std::move(new_cos);
  sin_ = std::move(new_sin);
  num_positions_ = count;
}

}  // namespace strata::model
