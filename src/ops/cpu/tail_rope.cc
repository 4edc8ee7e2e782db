// SPDX-License-Identifier: Apache-2.0
#include "ops/cpu/tail_rope.h"

#include "ops/cpu/dispatch.h"

namespace strata::ops::cpu {
namespace {

TailRopeKernel kernel_args_of(const TailRopeArgs& args) {
  const int64_t width = args.x.shape[2];
  const int64_t rotated = 2 * args.cos.cols();
  return {.x = args.x.data,
          .x_type = args.x.dtype,
          .num_heads = args.x.shape[1],
          .width = width,
          .rotated = rotated,
          .norm = args.norm,
          .weight = args.weight.empty() ? nullptr : args.weight.f32(),
          .eps = args.eps,
          .positions = args.positions.data(),
          .cos = args.cos.f32(),
          .sin = args.sin.f32(),
          .table_stride = args.cos.row_stride,
          .inverse = args.inverse};
}

}  // namespace

void tail_rope(CpuBackend& backend, const TailRopeArgs& args, TensorView y) {
  const HostAccess access(backend.allocator());
  const TailRopeKernel k = kernel_args_of(args);
  with_path(backend.path(), [&]<typename V>() {
    parallel_for(backend, args.x.rows(), k.width, [&](int64_t begin, int64_t end) {
      tail_rope_rows<V>(k, y.dtype, y.data, begin, end);
    });
  });
}

void tail_rope_backward(CpuBackend& backend, const TailRopeArgs& args, TensorView d_y,
                        TensorView d_x, TensorView d_weight) {
  const HostAccess access(backend.allocator());
  const TailRopeKernel k = kernel_args_of(args);
  const int64_t rows = args.x.rows();
  const Scratch::Mark mark(backend.scratch());
  const TensorView inv_rms = backend.scratch().take(DType::kF32, {rows});
  with_path(backend.path(), [&]<typename V>() {
    parallel_for(backend, rows, k.width, [&](int64_t begin, int64_t end) {
      float row[kMaxTailWidth];
      tail_rope_backward_rows<V>(k, d_y.dtype, d_y.data, d_x.dtype, d_x.data, row, begin, end);
    });
    if (d_weight.empty()) return;
    parallel_for(backend, rows, k.width, [&](int64_t begin, int64_t end) {
      compute_tail_inv_rms_rows<V>(k, inv_rms.f32(), begin, end);
    });
    parallel_for_columns(backend, rows, k.width, [&](int64_t begin, int64_t end) {
      add_tail_rope_d_weight<V>(k, d_y.dtype, d_y.data, inv_rms.f32(), rows, d_weight.f32(), begin,
                                end);
    });
  });
}

}  // namespace strata::ops::cpu
