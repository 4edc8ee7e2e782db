// SPDX-License-Identifier: Apache-2.0
#include "ops/cpu/rms_norm.h"

#include <algorithm>

#include "ops/cpu/dispatch.h"
#include "ops/cpu/norm_weight.h"
#include "ops/rms_norm.h"

namespace strata::ops::cpu {
namespace {

// [D], which may lie in scratch.
const float* multipliers_of(CpuBackend& backend, const RmsNormArgs& args) {
  if (!args.weight.empty()) {
    return compute_offset_weight(backend, args.weight, args.weight_offset);
  }
  const int64_t dim = args.x.cols();
  float* ones = backend.scratch().take(DType::kF32, {dim}).f32();
  if (!backend.is_counting()) std::fill_n(ones, dim, 1.0f);
  return ones;
}

RmsNormKernel prepare_kernel_args(CpuBackend& backend, const RmsNormArgs& args) {
  return {.x = args.x.data,
          .x_type = args.x.dtype,
          .x_stride = args.x.row_stride,
          .weight = multipliers_of(backend, args),
          .eps = args.eps,
          .num_rows = args.x.rows(),
          .dim = args.x.cols()};
}

}  // namespace

void rms_norm(CpuBackend& backend, const RmsNormArgs& args, TensorView y, TensorView inv_rms) {
  const HostAccess access(backend.allocator());
  Scratch::Mark mark(backend.scratch());
  const RmsNormKernel kernel = prepare_kernel_args(backend, args);
  float* inv = inv_rms.empty() ? nullptr : inv_rms.f32();
  with_path(backend.path(), [&]<typename V>() {
    parallel_for(backend, kernel.num_rows, kernel.dim, [&](int64_t begin, int64_t end) {
      rms_norm_rows<V>(kernel, y.data, y.dtype, y.row_stride, inv, begin, end);
    });
  });
}

void rms_norm_backward(CpuBackend& backend, const RmsNormArgs& args, TensorView inv_rms,
                       TensorView d_y, TensorView d_x, TensorView d_weight) {
  const HostAccess access(backend.allocator());
  Scratch::Mark mark(backend.scratch());
  const RmsNormKernel kernel = prepare_kernel_args(backend, args);
  if (kernel.num_rows == 0) return;
  const bool recompute = inv_rms.empty();
  if (recompute) inv_rms = backend.scratch().take(DType::kF32, {kernel.num_rows});
  with_path(backend.path(), [&]<typename V>() {
    parallel_for(backend, kernel.num_rows, kernel.dim, [&](int64_t begin, int64_t end) {
      if (recompute) compute_inv_rms_rows<V>(kernel, inv_rms.f32(), begin, end);
      rms_norm_backward_rows<V>(kernel, inv_rms.f32(), d_y.f32(), d_y.row_stride, d_x.f32(),
                                d_x.row_stride, begin, end);
    });
    if (d_weight.empty()) return;
    parallel_for_columns(backend, kernel.num_rows, kernel.dim, [&](int64_t begin, int64_t end) {
      add_rms_norm_d_weight<V>(kernel, inv_rms.f32(), d_y.f32(), d_y.row_stride, d_weight.f32(),
                               begin, end);
    });
  });
}

}  // namespace strata::ops::cpu
