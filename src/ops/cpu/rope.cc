// SPDX-License-Identifier: Apache-2.0
#include "ops/cpu/rope.h"

#include "ops/cpu/dispatch.h"
#include "ops/cpu/norm_weight.h"

namespace strata::ops::cpu {
namespace {

// The weight may lie in scratch.
RopeKernel prepare_kernel_args(CpuBackend& backend, const HeadNormRopeArgs& args) {
  const int64_t dim = args.x.cols();
  const int64_t rotary_dim = args.rotary_width();
  return {.x = args.x.data,
          .x_type = args.x.dtype,
          .x_stride = args.x.row_stride,
          .weight = args.weight.empty()
                        ? nullptr
                        : compute_offset_weight(backend, args.weight, args.weight_offset),
          .eps = args.eps,
          .positions = args.positions.data(),
          .cos = args.cos.f32(),
          .sin = args.sin.f32(),
          .table_stride = args.cos.row_stride,
          .num_heads = args.x.shape[1],
          .num_rows = args.x.rows(),
          .dim = dim,
          .rotary_dim = rotary_dim,
          .interleaved = args.interleaved};
}

// d_weight += its gradient, over all rows: of pairs, then of columns that are not turned.
template <typename V>
void add_d_weight(CpuBackend& backend, const RopeKernel& kernel, const TensorView& d_y,
                  float* d_weight) {
  float* inv_rms = backend.scratch().take(DType::kF32, {kernel.num_rows}).f32();
  parallel_for(backend, kernel.num_rows, kernel.dim, [&](int64_t begin, int64_t end) {
    compute_head_inv_rms_rows<V>(kernel, inv_rms, begin, end);
  });
  const int64_t pairs = kernel.rotary_dim / 2;
  parallel_for_columns(backend, kernel.num_rows, pairs, [&](int64_t begin, int64_t end) {
    add_head_norm_rope_d_weight<V>(kernel, inv_rms, d_y.data, d_y.dtype, d_y.row_stride, d_weight,
                                   begin, end);
  });
  const int64_t first = kernel.rotary_dim;
  parallel_for_columns(
      backend, kernel.num_rows, kernel.dim - first, [&](int64_t begin, int64_t end) {
        add_unrotated_d_weight<V>(kernel, inv_rms, d_y.data, d_y.dtype, d_y.row_stride, d_weight,
                                  first + begin, first + end);
      });
}

}  // namespace

void head_norm_rope(CpuBackend& backend, const HeadNormRopeArgs& args, TensorView y) {
  const HostAccess access(backend.allocator());
  Scratch::Mark mark(backend.scratch());
  const RopeKernel kernel = prepare_kernel_args(backend, args);
  with_path(backend.path(), [&]<typename V>() {
    parallel_for(backend, kernel.num_rows, kernel.dim, [&](int64_t begin, int64_t end) {
      head_norm_rope_rows<V>(kernel, y.data, y.row_stride, begin, end);
    });
  });
}

void head_norm_rope_backward(CpuBackend& backend, const HeadNormRopeArgs& args, TensorView d_y,
                             TensorView d_x, TensorView d_weight) {
  const HostAccess access(backend.allocator());
  Scratch::Mark mark(backend.scratch());
  const RopeKernel kernel = prepare_kernel_args(backend, args);
  with_path(backend.path(), [&]<typename V>() {
    if (!d_weight.empty() && kernel.num_rows > 0) {  // first: d_x may lie over d_y
      add_d_weight<V>(backend, kernel, d_y, d_weight.f32());
    }
    parallel_for(backend, kernel.num_rows, kernel.dim, [&](int64_t begin, int64_t end) {
      head_norm_rope_backward_rows<V>(kernel, d_y.data, d_y.dtype, d_y.row_stride, d_x.data,
                                      d_x.dtype, d_x.row_stride, begin, end);
    });
  });
}

}  // namespace strata::ops::cpu
