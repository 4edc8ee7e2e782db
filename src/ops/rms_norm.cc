#include "ops/rms_norm.h"

#include "ops/cpu/dispatch.h"
#include "ops/cpu/norm_weight.h"
#include "ops/cpu/rms_norm.h"

namespace strata::ops {
namespace {

// The weight may lie in scratch.
cpu::RmsNormKernel checked(Backend& backend, const RmsNormArgs& args) {
  CHECK(cpu::is_float(args.x.dtype));
  CHECK(args.weight.dtype == DType::kF32 && args.weight.shape == Shape{args.x.cols()},
        args.weight.shape.to_string(), args.x.shape.to_string());
  return {.x = args.x.data,
          .x_type = args.x.dtype,
          .x_stride = args.x.row_stride,
          .weight = cpu::offset_weight(backend, args.weight, args.weight_offset),
          .eps = args.eps,
          .num_rows = args.x.rows(),
          .dim = args.x.cols()};
}

void check_inv_rms(TensorView inv_rms, const cpu::RmsNormKernel& kernel) {
  if (inv_rms.empty()) return;
  CHECK(inv_rms.dtype == DType::kF32 && inv_rms.shape == Shape{kernel.num_rows},
        inv_rms.shape.to_string(), kernel.num_rows);
}

}  // namespace

void rms_norm(Backend& backend, const RmsNormArgs& args, TensorView y, TensorView inv_rms) {
  Scratch::Mark mark(backend.scratch());
  const cpu::RmsNormKernel kernel = checked(backend, args);
  CHECK(cpu::is_float(y.dtype) && y.shape == args.x.shape, y.shape.to_string(),
        args.x.shape.to_string());
  check_inv_rms(inv_rms, kernel);
  float* inv = inv_rms.empty() ? nullptr : inv_rms.f32();
  cpu::with_path(backend.path(), [&]<typename V>() {
    cpu::for_range(backend, kernel.num_rows, kernel.dim, [&](int64_t begin, int64_t end) {
      cpu::rms_norm_rows<V>(kernel, y.data, y.dtype, y.row_stride, inv, begin, end);
    });
  });
}

void rms_norm_backward(Backend& backend, const RmsNormArgs& args, TensorView inv_rms,
                       TensorView d_y, TensorView d_x, TensorView d_weight) {
  Scratch::Mark mark(backend.scratch());
  const cpu::RmsNormKernel kernel = checked(backend, args);
  CHECK(d_y.dtype == DType::kF32 && d_y.shape == args.x.shape, d_y.shape.to_string());
  CHECK(d_x.dtype == DType::kF32 && d_x.shape == args.x.shape, d_x.shape.to_string());
  check_inv_rms(inv_rms, kernel);
  if (kernel.num_rows == 0) return;
  const bool recompute = inv_rms.empty();
  if (recompute) inv_rms = backend.scratch().take(DType::kF32, {kernel.num_rows});
  cpu::with_path(backend.path(), [&]<typename V>() {
    cpu::for_range(backend, kernel.num_rows, kernel.dim, [&](int64_t begin, int64_t end) {
      if (recompute) cpu::inv_rms_rows<V>(kernel, inv_rms.f32(), begin, end);
      cpu::rms_norm_backward_rows<V>(kernel, inv_rms.f32(), d_y.f32(), d_y.row_stride, d_x.f32(),
                                     d_x.row_stride, begin, end);
    });
    if (d_weight.empty()) return;
    CHECK(d_weight.dtype == DType::kF32 && d_weight.shape == args.weight.shape,
          d_weight.shape.to_string());
    cpu::for_columns(backend, kernel.num_rows, kernel.dim, [&](int64_t begin, int64_t end) {
      cpu::rms_norm_backward_columns<V>(kernel, inv_rms.f32(), d_y.f32(), d_y.row_stride,
                                        d_weight.f32(), begin, end);
    });
  });
}

}  // namespace strata::ops
