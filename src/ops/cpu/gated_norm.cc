// SPDX-License-Identifier: Apache-2.0
#include "ops/cpu/gated_norm.h"

#include "ops/cpu/dispatch.h"
#include "ops/gated_norm.h"

namespace strata::ops::cpu {
namespace {

// [T, N, D] or [T, N D] as rows of heads.
HeadRows heads_of(TensorView view, const GatedNormArgs& args) {
  const Shape& heads = args.x.shape;
  if (view.shape == heads) return {view.data, heads[1] * view.row_stride, view.row_stride};
  return {view.data, view.row_stride, heads[2]};
}

GatedNormKernel kernel_args_of(const GatedNormArgs& args) {
  return {.x = heads_of(args.x, args),
          .z = heads_of(args.z, args),
          .type = args.x.dtype,
          .weight = args.weight.f32(),
          .eps = args.eps,
          .num_heads = args.x.shape[1],
          .num_rows = args.x.rows(),
          .dim = args.x.cols()};
}

// d_weight += its gradient, over all rows.
template <typename V>
void add_d_weight(CpuBackend& backend, const GatedNormKernel& kernel, const HeadRows& d_y,
                  DType d_y_type, float* d_weight) {
  float* inv_rms = backend.scratch().take(DType::kF32, {kernel.num_rows}).f32();
  parallel_for(backend, kernel.num_rows, kernel.dim, [&](int64_t begin, int64_t end) {
    compute_gated_inv_rms_rows<V>(kernel, inv_rms, begin, end);
  });
  parallel_for_columns(backend, kernel.num_rows, kernel.dim, [&](int64_t begin, int64_t end) {
    add_gated_norm_d_weight<V>(kernel, inv_rms, d_y, d_y_type, d_weight, begin, end);
  });
}

}  // namespace

void gated_norm(CpuBackend& backend, const GatedNormArgs& args, TensorView y) {
  const HostAccess access(backend.allocator());
  const GatedNormKernel kernel = kernel_args_of(args);
  const HeadRows y_rows = heads_of(y, args);
  with_path(backend.path(), [&]<typename V>() {
    parallel_for(backend, kernel.num_rows, kernel.dim, [&](int64_t begin, int64_t end) {
      gated_norm_rows<V>(kernel, y_rows, begin, end);
    });
  });
}

void gated_norm_backward(CpuBackend& backend, const GatedNormArgs& args, TensorView d_y,
                         TensorView d_x, TensorView d_z, TensorView d_weight) {
  const HostAccess access(backend.allocator());
  Scratch::Mark mark(backend.scratch());
  const GatedNormKernel kernel = kernel_args_of(args);
  const HeadRows d_y_rows = heads_of(d_y, args);
  const HeadRows d_x_rows = heads_of(d_x, args);
  const HeadRows d_z_rows = heads_of(d_z, args);
  with_path(backend.path(), [&]<typename V>() {
    if (!d_weight.empty() && kernel.num_rows > 0) {  // first: d_x and d_z may lie over the inputs
      add_d_weight<V>(backend, kernel, d_y_rows, d_y.dtype, d_weight.f32());
    }
    parallel_for(backend, kernel.num_rows, kernel.dim, [&](int64_t begin, int64_t end) {
      gated_norm_backward_rows<V>(kernel, d_y_rows, d_y.dtype, d_x_rows, d_z_rows, begin, end);
    });
  });
}

}  // namespace strata::ops::cpu
