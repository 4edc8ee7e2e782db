// SPDX-License-Identifier: Apache-2.0
#include "ops/cpu/gemm.h"
#include "ops/cpu/path_table.h"

namespace strata::ops::cpu {

const GemmKernels& choose_gemm_kernels(CpuPath path, DType dtype) {
  return path_row(path).gemm(dtype == DType::kBF16);
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
