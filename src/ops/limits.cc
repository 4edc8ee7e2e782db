// SPDX-License-Identifier: Apache-2.0
#include "ops/limits.h"

#include "ops/checks.h"
#include "ops/elementwise.h"
#include "ops/rows.h"

namespace strata::ops {
namespace {

// Pages that were never written are one page.
Memory allocate_written_memory(Backend& backend, int64_t bytes) {
  Memory memory(backend.allocator(), bytes);
  fill(backend, TensorView(memory.data(), DType::kF32, {memory.size() / 4}), 1.0f);
  return memory;
}

}  // namespace

double LimitProbe::measure_matrix_flops(DType dtype, double seconds) {
  CHECK(is_float(dtype), dtype);
  CHECK(seconds > 0, seconds);
  return backend_.rows().limits.matrix_flops(backend_, dtype, seconds);
}

double LimitProbe::measure_read_bandwidth() {
  constexpr int64_t kMebibyte = 1 << 20;
  if (memory_.size() == 0)
    memory_ = allocate_written_memory(backend_, read_bytes_ / kMebibyte * kMebibyte);
  return backend_.rows().limits.read_bandwidth(backend_, memory_.data(), memory_.size());
}

}  // namespace strata::ops
