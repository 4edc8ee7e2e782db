#include "ops/tail_rope.h"

#include "ops/cpu/dispatch.h"
#include "ops/cpu/tail_rope.h"

namespace strata::ops {
namespace {

void check_like(const TensorView& view, const TailRopeArgs& args) {
  CHECK(cpu::is_float(view.dtype) && view.dense() && view.shape == args.x.shape, view.dtype,
        view.shape.to_string(), args.x.shape.to_string());
}

cpu::TailRopeKernel checked(const Backend& backend, const TailRopeArgs& args) {
  check_like(args.x, args);
  CHECK(args.x.shape.rank() == 3, args.x.shape.to_string());
  const int64_t width = args.x.shape[2];
  const int64_t rotated = 2 * args.cos.cols();
  CHECK(rotated <= width && (width - rotated) % 2 == 0 && width <= kMaxTailWidth, rotated, width);
  CHECK(args.cos.dtype == DType::kF32 && args.sin.dtype == DType::kF32 &&
            args.cos.shape == args.sin.shape && args.cos.row_stride == args.sin.row_stride,
        args.cos.shape.to_string(), args.sin.shape.to_string());
  CHECK(args.weight.empty() ||
            (args.norm && args.weight.dtype == DType::kF32 && args.weight.shape == Shape{width}),
        args.weight.shape.to_string());
  CHECK(std::ssize(args.positions) == args.x.shape[0], args.positions.size());
  for (const int32_t position : args.positions) {
    if (backend.is_counting()) break;
    DCHECK(0 <= position && position < args.cos.rows(), position, args.cos.rows());
  }
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

void tail_rope(Backend& backend, const TailRopeArgs& args, TensorView y) {
  const cpu::TailRopeKernel k = checked(backend, args);
  check_like(y, args);
  cpu::with_path(backend.path(), [&]<typename V>() {
    cpu::for_range(backend, args.x.rows(), k.width, [&](int64_t begin, int64_t end) {
      cpu::tail_rope_rows<V>(k, y.dtype, y.data, begin, end);
    });
  });
}

void tail_rope_backward(Backend& backend, const TailRopeArgs& args, TensorView d_y, TensorView d_x,
                        TensorView d_weight) {
  const cpu::TailRopeKernel k = checked(backend, args);
  check_like(d_y, args);
  check_like(d_x, args);
  CHECK(d_weight.empty() || (!args.weight.empty() && d_weight.dtype == DType::kF32 &&
                             d_weight.shape == args.weight.shape && d_y.data != d_x.data),
        d_weight.shape.to_string());
  const int64_t rows = args.x.rows();
  const Scratch::Mark mark(backend.scratch());
  const TensorView inv_rms = backend.scratch().take(DType::kF32, {rows});
  cpu::with_path(backend.path(), [&]<typename V>() {
    cpu::for_range(backend, rows, k.width, [&](int64_t begin, int64_t end) {
      float row[kMaxTailWidth];
      cpu::tail_rope_backward_rows<V>(k, d_y.dtype, d_y.data, d_x.dtype, d_x.data, row, begin, end);
    });
    if (d_weight.empty()) return;
    cpu::for_range(backend, rows, k.width, [&](int64_t begin, int64_t end) {
      cpu::tail_rope_inv_rms<V>(k, inv_rms.f32(), begin, end);
    });
    cpu::for_columns(backend, rows, k.width, [&](int64_t begin, int64_t end) {
      cpu::tail_rope_weight_columns<V>(k, d_y.dtype, d_y.data, inv_rms.f32(), rows, d_weight.f32(),
                                       begin, end);
    });
  });
}

}  // namespace strata::ops
