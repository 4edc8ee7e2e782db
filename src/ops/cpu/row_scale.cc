// SPDX-License-Identifier: Apache-2.0
#include "ops/cpu/row_scale.h"

#include "ops/cpu/dispatch.h"
#include "ops/cpu/elementwise.h"

namespace strata::ops::cpu {

void scale_rows(CpuBackend& backend, TensorView x, TensorView scales, TensorView y) {
  const HostAccess access(backend.allocator());
  with_path(backend.path(), [&]<typename V>() {
    parallel_for(backend, x.rows(), x.cols(), [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        scale_piece<V>(x.dtype, x.row(row), scales.f32()[row], y.dtype, y.row(row), x.cols());
      }
    });
  });
}

void scale_rows_backward(CpuBackend& backend, TensorView x, TensorView scales, TensorView d_y,
                         TensorView d_x, TensorView d_scales) {
  const HostAccess access(backend.allocator());
  with_path(backend.path(), [&]<typename V>() {
    parallel_for(backend, x.rows(), x.cols(), [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const auto* d = static_cast<const float*>(d_y.row(row));
        d_scales.f32()[row] = row_dot_piece<V>(x.dtype, x.row(row), d, x.cols());
        scale_piece<V>(DType::kF32, d, scales.f32()[row], DType::kF32, d_x.row(row), x.cols());
      }
    });
  });
}

}  // namespace strata::ops::cpu
