// SPDX-License-Identifier: Apache-2.0
#include "ops/cpu/gemm.h"

namespace strata::ops::cpu {

const GemmKernels& choose_gemm_kernels(CpuPath path, DType dtype) {
  const bool bf16 = dtype == DType::kBF16;
#if defined(__x86_64__)
  switch (path) {
    case CpuPath::kAvx512Bf16:
      return bf16 ? gemm_kernels_avx512_bf16() : gemm_kernels_avx512(bf16);
    case CpuPath::kAvx512:
      return gemm_kernels_avx512(bf16);
    case CpuPath::kAvx2:
      return gemm_kernels_avx2(bf16);
    case CpuPath::kReference:
      break;
  }
#else
  CHECK(path == CpuPath::kReference, path);
#endif
  return gemm_kernels_reference(bf16);
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
