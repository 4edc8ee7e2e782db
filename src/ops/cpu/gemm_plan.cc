// SPDX-License-Identifier: Apache-2.0
#include "ops/cpu/cpu_backend.h"
#include "ops/cpu/gemm.h"
#include "ops/cpu/path_table.h"

namespace strata::ops::cpu {

const GemmKernels& choose_gemm_kernels(CpuPath path, DType dtype) {
  return path_row(path).gemm(dtype == DType::kBF16);
}

PackedRows pack_rows_together(CpuBackend& backend, const TensorView& x, int64_t cols) {
  const GemmKernels& kernels = choose_gemm_kernels(backend.path(), x.dtype);
  const int64_t rows = x.rows();
  if (kernels.pack_rows == nullptr || rows < kFewestPackedRows || rows > packed_rows(cols)) {
    return {};
  }
  auto* packed = static_cast<char*>(backend.scratch().take(packed_bytes(rows, cols)));
  const int64_t strip = packed_strip(cols);
  backend.pool().run(ceil_div(rows, 16), [&](int64_t begin, int64_t end, int) {
    kernels.pack_rows({.x = x.row(begin * 16),
                       .x_stride = x.row_stride,
                       .rows = std::min(end * 16, rows) - begin * 16,
                       .cols = cols,
                       .dst = packed + begin * strip * 2,
                       .dst_stride = strip});
  });
  return {true, packed};
}

Grid split_grid(int64_t threads, int64_t cols, int64_t rows) {
  Grid best;
  int64_t best_size = cols * rows;
  for (int64_t col_parts = threads; col_parts >= 1; --col_parts) {
    const int64_t row_parts = threads / col_parts;
    const int64_t size = ceil_div(cols, col_parts) * ceil_div(rows, row_parts);
    if (size < best_size) {
      best_size = size;
      best = {.col_parts = col_parts, .row_parts = row_parts};
    }
  }
  return best;
}

}  // namespace strata::ops::cpu
