// SPDX-License-Identifier: Apache-2.0
#include "ops/limits.h"

#include "ops/checks.h"
#include "ops/elementwise.h"
#include "ops/rows.h"

namespace strata::ops {

double LimitProbe::measure_matrix_flops(DType dtype, double seconds) {
  CHECK(is_float(dtype), dtype);
  CHECK(seconds > 0, seconds);
  return backend_.rows().limits.matrix_flops(backend_, dtype, seconds);
}

double LimitProbe::measure_read_bandwidth() {
  constexpr int64_t kMebibyte = 1 << 20;
  if (memory_.size() == 0) {
    memory_ = Memory(backend_.allocator(), read_bytes_ / kMebibyte * kMebibyte);
    // Pages that were never written are one page.
    fill(backend_, TensorView(memory_.data(), DType::kF32, {memory_.size() / 4}), 1.0f);
  }
  return backend_.rows().limits.read_bandwidth(backend_, memory_.data(), memory_.size());
}

}  // namespace strata::ops
