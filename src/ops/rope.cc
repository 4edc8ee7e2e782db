#include "ops/rope.h"

#include "ops/cpu/dispatch.h"
#include "ops/cpu/norm_weight.h"
#include "ops/cpu/rope.h"

namespace strata::ops {
namespace {

// The weight may lie in scratch.
cpu::RopeKernel checked(Backend& backend, const HeadNormRopeArgs& args) {
  CHECK(cpu::is_float(args.x.dtype) && args.x.shape.rank() == 3, args.x.shape.to_string());
  const int64_t dim = args.x.cols();
  const int64_t rotary_dim = args.rotary_width();
  CHECK(rotary_dim % 2 == 0 && 0 <= rotary_dim && rotary_dim <= dim, rotary_dim, dim);
  CHECK(std::ssize(args.positions) == args.x.shape[0], args.positions.size(),
        args.x.shape.to_string());
  CHECK(
      args.weight.empty() || (args.weight.dtype == DType::kF32 && args.weight.shape == Shape{dim}),
      args.weight.shape.to_string());
  CHECK(args.cos.dtype == DType::kF32 && args.sin.dtype == DType::kF32);
  CHECK(args.cos.cols() == rotary_dim / 2 && args.sin.shape == args.cos.shape &&
            args.sin.row_stride == args.cos.row_stride,
        args.cos.shape.to_string(), args.sin.shape.to_string(), rotary_dim);
  CHECK(
      !args.interleaved || (args.weight.empty() && rotary_dim == dim && dim <= kMaxInterleavedDim),
      rotary_dim, dim);
  for (const int32_t position : args.positions) {
    CHECK(position >= 0 && position < args.cos.rows(), position, args.cos.rows());
  }
  return {.x = args.x.data,
          .x_type = args.x.dtype,
          .x_stride = args.x.row_stride,
          .weight = args.weight.empty()
                        ? nullptr
                        : cpu::offset_weight(backend, args.weight, args.weight_offset),
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

}  // namespace

void head_norm_rope(Backend& backend, const HeadNormRopeArgs& args, TensorView y) {
  Scratch::Mark mark(backend.scratch());
  const cpu::RopeKernel kernel = checked(backend, args);
  CHECK(y.dtype == args.x.dtype && y.shape == args.x.shape, y.shape.to_string(),
        args.x.shape.to_string());
  cpu::with_path(backend.path(), [&]<typename V>() {
    cpu::for_range(backend, kernel.num_rows, kernel.dim, [&](int64_t begin, int64_t end) {
      cpu::head_norm_rope_rows<V>(kernel, y.data, y.row_stride, begin, end);
    });
  });
}

void head_norm_rope_backward(Backend& backend, const HeadNormRopeArgs& args, TensorView d_y,
                             TensorView d_x, TensorView d_weight) {
  Scratch::Mark mark(backend.scratch());
  const cpu::RopeKernel kernel = checked(backend, args);
  CHECK(cpu::is_float(d_y.dtype) && d_y.shape == args.x.shape, d_y.shape.to_string());
  CHECK(cpu::is_float(d_x.dtype) && d_x.shape == args.x.shape, d_x.shape.to_string());
  CHECK(d_weight.empty() || (d_weight.dtype == DType::kF32 && d_weight.shape == args.weight.shape),
        d_weight.shape.to_string());
  cpu::with_path(backend.path(), [&]<typename V>() {
    if (!d_weight.empty() && kernel.num_rows > 0) {  // first: d_x may lie over d_y
      float* inv_rms = backend.scratch().take(DType::kF32, {kernel.num_rows}).f32();
      cpu::for_range(backend, kernel.num_rows, kernel.dim, [&](int64_t begin, int64_t end) {
        cpu::head_inv_rms_rows<V>(kernel, inv_rms, begin, end);
      });
      const int64_t pairs = kernel.rotary_dim / 2;
      cpu::for_columns(backend, kernel.num_rows, pairs, [&](int64_t begin, int64_t end) {
        cpu::head_norm_rope_backward_columns<V>(kernel, inv_rms, d_y.data, d_y.dtype,
                                                d_y.row_stride, d_weight.f32(), begin, end);
      });
      const int64_t first = kernel.rotary_dim;
      cpu::for_columns(
          backend, kernel.num_rows, kernel.dim - first, [&](int64_t begin, int64_t end) {
            cpu::head_norm_backward_columns<V>(kernel, inv_rms, d_y.data, d_y.dtype, d_y.row_stride,
                                               d_weight.f32(), first + begin, first + end);
          });
    }
    cpu::for_range(backend, kernel.num_rows, kernel.dim, [&](int64_t begin, int64_t end) {
      cpu::head_norm_rope_backward_rows<V>(kernel, d_y.data, d_y.dtype, d_y.row_stride, d_x.data,
                                           d_x.dtype, d_x.row_stride, begin, end);
    });
  });
}

}  // namespace strata::ops
