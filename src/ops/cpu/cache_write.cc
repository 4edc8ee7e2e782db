// SPDX-License-Identifier: Apache-2.0
#include "ops/cpu/cache_write.h"

#include <cstring>

#include "ops/cpu/dispatch.h"

namespace strata::ops::cpu {

void cache_write(CpuBackend& backend, TensorView x, std::span<const CacheSegment> runs) {
  if (runs.empty()) return;
  const HostAccess access(backend.allocator());
  const int64_t bytes = x.cols() * dtype_bytes(x.dtype);
  const int64_t rows_each = x.rows() / std::ssize(runs) + 1;
  parallel_for(backend, std::ssize(runs), rows_each * x.cols(), [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) {
      const CacheSegment& run = runs[static_cast<size_t>(i)];
      auto* to = static_cast<char*>(run.to);
      for (int64_t row = run.begin; row < run.end; ++row, to += bytes) {
        std::memcpy(to, x.row(row), static_cast<size_t>(bytes));
      }
    }
  });
}

}  // namespace strata::ops::cpu
