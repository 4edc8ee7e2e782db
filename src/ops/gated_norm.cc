#include "ops/gated_norm.h"

#include "ops/cpu/dispatch.h"
#include "ops/cpu/gated_norm.h"

namespace strata::ops {
namespace {

// [T, N, D] or [T, N D] as rows of heads.
cpu::HeadRows heads_of(TensorView view, const GatedNormArgs& args) {
  const Shape& heads = args.x.shape;
  if (view.shape == heads) return {view.data, heads[1] * view.row_stride, view.row_stride};
  CHECK((view.shape == Shape{heads[0], heads[1] * heads[2]}), view.shape.to_string(),
        heads.to_string());
  return {view.data, view.row_stride, heads[2]};
}

cpu::GatedNormKernel checked(const GatedNormArgs& args) {
  CHECK(cpu::is_float(args.x.dtype) && args.x.shape.rank() == 3, args.x.dtype,
        args.x.shape.to_string());
  CHECK(args.z.dtype == args.x.dtype, args.z.dtype, args.x.dtype);
  CHECK(args.weight.dtype == DType::kF32 && args.weight.shape == Shape{args.x.cols()},
        args.weight.shape.to_string(), args.x.shape.to_string());
  return {.x = heads_of(args.x, args),
          .z = heads_of(args.z, args),
          .type = args.x.dtype,
          .weight = args.weight.f32(),
          .eps = args.eps,
          .num_heads = args.x.shape[1],
          .num_rows = args.x.rows(),
          .dim = args.x.cols()};
}

}  // namespace

void gated_norm(Backend& backend, const GatedNormArgs& args, TensorView y) {
  const cpu::GatedNormKernel kernel = checked(args);
  CHECK(y.dtype == args.x.dtype, y.dtype, args.x.dtype);
  const cpu::HeadRows y_rows = heads_of(y, args);
  cpu::with_path(backend.path(), [&]<typename V>() {
    cpu::for_range(backend, kernel.num_rows, kernel.dim, [&](int64_t begin, int64_t end) {
      cpu::gated_norm_rows<V>(kernel, y_rows, begin, end);
    });
  });
}

void gated_norm_backward(Backend& backend, const GatedNormArgs& args, TensorView d_y,
                         TensorView d_x, TensorView d_z, TensorView d_weight) {
  Scratch::Mark mark(backend.scratch());
  const cpu::GatedNormKernel kernel = checked(args);
  CHECK(cpu::is_float(d_y.dtype), d_y.dtype);
  CHECK(d_x.dtype == args.x.dtype && d_z.dtype == args.x.dtype, d_x.dtype, d_z.dtype, args.x.dtype);
  CHECK(d_weight.empty() || (d_weight.dtype == DType::kF32 && d_weight.shape == args.weight.shape),
        d_weight.dtype, d_weight.shape.to_string());
  const cpu::HeadRows d_y_rows = heads_of(d_y, args);
  const cpu::HeadRows d_x_rows = heads_of(d_x, args);
  const cpu::HeadRows d_z_rows = heads_of(d_z, args);
  cpu::with_path(backend.path(), [&]<typename V>() {
    if (!d_weight.empty() && kernel.num_rows > 0) {  // first: d_x and d_z may lie over the inputs
      float* inv_rms = backend.scratch().take(DType::kF32, {kernel.num_rows}).f32();
      cpu::for_range(backend, kernel.num_rows, kernel.dim, [&](int64_t begin, int64_t end) {
        cpu::gated_inv_rms_rows<V>(kernel, inv_rms, begin, end);
      });
      cpu::for_columns(backend, kernel.num_rows, kernel.dim, [&](int64_t begin, int64_t end) {
        cpu::gated_norm_backward_columns<V>(kernel, inv_rms, d_y_rows, d_y.dtype, d_weight.f32(),
                                            begin, end);
      });
    }
    cpu::for_range(backend, kernel.num_rows, kernel.dim, [&](int64_t begin, int64_t end) {
      cpu::gated_norm_backward_rows<V>(kernel, d_y_rows, d_y.dtype, d_x_rows, d_z_rows, begin, end);
    });
  });
}

}  // namespace strata::ops
