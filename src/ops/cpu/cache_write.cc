// SPDX-License-Identifier: Apache-2.0
#include "ops/cpu/cache_write.h"

#include <cstring>

#include "ops/cpu/dispatch.h"

namespace strata::ops::cpu {
namespace {

void write_run(const TensorView& x, const CacheSegment& run) {
  const int64_t bytes = x.cols() * dtype_bytes(x.dtype);
  auto* to = static_cast<char*>(run.to);
  for (int64_t row = run.begin; row < run.end; ++row, to += bytes) {
    std::memcpy(to, x.row(row), static_cast<size_t>(bytes));
  }
}

}  // namespace

void cache_write(CpuBackend& backend, TensorView x, std::span<const CacheSegment> runs) {
  if (runs.empty()) return;
  const HostAccess access(backend.allocator());
  const int64_t rows_each = x.rows() / std::ssize(runs) + 1;
  parallel_for(backend, std::ssize(runs), rows_each * x.cols(), [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) write_run(x, runs[static_cast<size_t>(i)]);
  });
}

}  // namespace strata::ops::cpu
