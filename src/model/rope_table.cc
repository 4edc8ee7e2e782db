#include "model/rope_table.h"

#include <algorithm>
#include <cmath>

namespace strata::model {

void RopeTable::reserve(int64_t num_positions) {
  if (num_positions <= num_positions_) return;
  constexpr int64_t kSmallest = 1024;
  num_positions_ = std::max({num_positions, 2 * num_positions_, kSmallest});
  const auto pairs = static_cast<int64_t>(frequencies_.size());
  cos_ = Tensor(backend_.allocator(), DType::kF32, {num_positions_, pairs});
  sin_ = Tensor(backend_.allocator(), DType::kF32, {num_positions_, pairs});
  float* cos = cos_.view().f32();
  float* sin = sin_.view().f32();
  for (int64_t position = 0; position < num_positions_; ++position) {
    for (int64_t pair = 0; pair < pairs; ++pair) {
      const double angle = static_cast<double>(position) * frequencies_[static_cast<size_t>(pair)];
      cos[position * pairs + pair] = static_cast<float>(std::cos(angle) * factor_);
      sin[position * pairs + pair] = static_cast<float>(std::sin(angle) * factor_);
    }
  }
}

}  // namespace strata::model
