// SPDX-License-Identifier: Apache-2.0
#include "model/pass/rope_table.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <utility>
#include <vector>

#include "ops/elementwise.h"

namespace strata::model {
namespace {

// [count, pairs] each.
struct HostTable {
  std::vector<float> cos, sin;
};

// Times `factor` and the position's scale.
HostTable compute_cos_and_sin(std::span<const double> frequencies, double factor,
                              const PositionScale& scale, int64_t count) {
  const auto pairs = std::ssize(frequencies);
  HostTable table;
  table.cos.resize(static_cast<size_t>(count * pairs));
  table.sin.resize(table.cos.size());
  for (int64_t position = 0; position < count; ++position) {
    const double size = factor * scale.at(position);
    for (int64_t pair = 0; pair < pairs; ++pair) {
      const double angle = static_cast<double>(position) * frequencies[static_cast<size_t>(pair)];
      const auto at = static_cast<size_t>(position * pairs + pair);
      table.cos[at] = static_cast<float>(std::cos(angle) * size);
      table.sin[at] = static_cast<float>(std::sin(angle) * size);
    }
  }
  return table;
}

}  // namespace

void RopeTable::extend_to(int64_t num_positions) {
  if (num_positions <= num_positions_) return;
  constexpr int64_t kSmallest = 1024;
  const int64_t count = std::max({num_positions, 2 * num_positions_, kSmallest});
  const auto pairs = static_cast<int64_t>(frequencies_.size());
  const HostTable table = compute_cos_and_sin(frequencies_, factor_, position_scale_, count);
  Tensor new_cos(backend_.allocator(), DType::kF32, {count, pairs});
  Tensor new_sin(backend_.allocator(), DType::kF32, {count, pairs});
  ops::from_host(backend_, table.cos, new_cos);
  ops::from_host(backend_, table.sin, new_sin);
  // Without memory for all of it nothing has changed.
  cos_ = std::move(new_cos);
  sin_ = std::move(new_sin);
  num_positions_ = count;
}

}  // namespace strata::model
