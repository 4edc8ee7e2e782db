// SPDX-License-Identifier: Apache-2.0
#include "ops/gemm.h"

#include "ops/checks.h"
#include "ops/rows.h"
#include "ops/stage.h"

namespace strata::ops {
namespace {

// x [T, summed], w, out [T, made]: `summed` and `made` are the two axes of w.
void check_product(const GemmArgs& args, int64_t summed, int64_t made, const TensorView& out) {
  check_weights(args.w, args.x.dtype);
  CHECK(args.x.cols() == summed, args.x.cols(), summed);
  CHECK(out.cols() == made && out.rows() == args.x.rows(), out.cols(), made, out.rows(),
        args.x.rows());
  CHECK(is_float(out.dtype), out.dtype);
}

void check_run(const LowRankSegment& run, const GemmArgs& args, int64_t previous_end) {
  check_weights(run.w, args.x.dtype);
  CHECK(run.begin >= previous_end && run.end >= run.begin && run.end <= args.x.rows(), run.begin,
        run.end, previous_end, args.x.rows());
  CHECK(!run.w.is_narrow());
  CHECK(run.x.dtype == args.x.dtype && run.x.rows() == args.x.rows(), run.x.dtype, run.x.rows(),
        args.x.rows());
}

void check_gemm(const GemmArgs& args, const TensorView& y) {
  check_product(args, args.w.cols, args.w.rows, y);
  if (!args.bias.empty()) {
    CHECK(args.bias.dtype == DType::kF32 && args.bias.shape.num_elements() == args.w.rows,
          args.bias.dtype, args.bias.shape.num_elements(), args.w.rows);
  }
  if (!args.add.empty()) {
    CHECK(args.add.rows() == y.rows() && args.add.cols() == y.cols(), args.add.rows(), y.rows());
    CHECK(is_float(args.add.dtype), args.add.dtype);
  }
  int64_t end = 0;
  for (const LowRankSegment& run : args.runs) {
    check_run(run, args, end);
    CHECK(run.w.rows == args.w.rows && run.w.cols == run.x.cols(), run.w.rows, run.w.cols);
    CHECK(run.w.width == args.w.width, run.w.width, args.w.width);
    end = run.end;
  }
}

void check_gemm_dx(const GemmArgs& args, const TensorView& dx, bool accumulate) {
  check_product(args, args.w.rows, args.w.cols, dx);
  CHECK(args.bias.empty() && args.add.empty());
  CHECK(!accumulate || (dx.dtype == DType::kF32 && args.scale == 1.0f), dx.dtype, args.scale);
  int64_t end = 0;
  for (const LowRankSegment& run : args.runs) {
    check_run(run, args, end);
    CHECK(run.w.rows == run.x.cols() && run.w.cols == args.w.cols, run.w.rows, run.w.cols);
    end = run.end;
  }
}

void check_gemm_dw(const GemmDwArgs& args) {
  const auto& [dy, x, sequence_ends, dw] = args;
  CHECK(is_float(x.dtype) && dy.dtype == x.dtype, x.dtype, dy.dtype);
  CHECK(dw.dtype == DType::kF32, dw.dtype);
  CHECK(x.rows() == dy.rows() && x.rows() <= INT32_MAX, x.rows(), dy.rows());
  CHECK(dw.rows() == dy.cols() && dw.cols() == x.cols(), dw.rows(), dy.cols(), dw.cols(), x.cols());
  int64_t previous = 0;
  for (const int64_t end : sequence_ends) {
    CHECK(end >= previous, end, previous);
    previous = end;
  }
  CHECK(previous == x.rows(), previous, x.rows());
}

void check_run_products(const RunProducts& runs) {
  CHECK(runs.inputs.size() == runs.d_h.size(), runs.inputs.size(), runs.d_h.size());
  for (size_t i = 0; i < runs.inputs.size(); ++i) check_gemm_dx(runs.inputs[i], runs.d_h[i], false);
  for (const GemmDwArgs& item : runs.gradients) check_gemm_dw(item);
}

// Blocks of f32 are whole panels, and are added in dx.
void check_output_blocks(const GemmArgs& args, const TensorView& dx) {
  CHECK(args.w.dtype != DType::kF32 || args.w.rows <= kChainOutputs ||
            (kChainOutputs % args.w.width == 0 && args.scale == 1.0f && dx.dtype == DType::kF32),
        args.w.width, args.scale, dx.dtype);
}

// Counts the work of the products themselves, without their low-rank terms.
void count_product_flops(Backend& backend, std::span<const GemmArgs> products) {
  if (!backend.is_counting()) return;
  for (const GemmArgs& args : products) {
    backend.count_flops(2.0 * static_cast<double>(args.x.rows() * args.w.rows) *
                        static_cast<double>(args.w.cols));
  }
}

// Products, and the runs of each.
std::span<const GemmArgs> staged(Backend& backend, std::span<const GemmArgs> products) {
  return stage_list(backend, products,
                    [&](GemmArgs& product) { product.runs = stage_list(backend, product.runs); });
}

RunProducts staged(Backend& backend, RunProducts runs) {
  runs.inputs = staged(backend, runs.inputs);
  runs.d_h = stage_list(backend, runs.d_h);
  runs.gradients = stage_list(backend, runs.gradients, [&](GemmDwArgs& item) {
    item.sequence_ends = stage_list(backend, item.sequence_ends);
  });
  return runs;
}

using Products = std::span<const GemmArgs>;
using Views = std::span<const TensorView>;

}  // namespace

void gemm(Backend& backend, const GemmArgs& args, TensorView y) {
  check_gemm(args, y);
  count_product_flops(backend, {&args, 1});
  if (y.rows() == 0) return;
  backend.call()->gemm.list(backend, staged(backend, Products(&args, 1)),
                            stage_list(backend, Views(&y, 1)), /*most_rows=*/0);
}

void gemm_list(Backend& backend, std::span<const GemmArgs> products, std::span<const TensorView> y,
               int64_t most_rows) {
  CHECK(products.size() == y.size(), products.size(), y.size());
  for (size_t i = 0; i < products.size(); ++i) {
    check_gemm(products[i], y[i]);
    CHECK(y[i].rows() > 0);
  }
  count_product_flops(backend, products);
  if (products.empty()) return;
  backend.call()->gemm.list(backend, staged(backend, products), stage_list(backend, y), most_rows);
}

void gemm_runs(Backend& backend, TensorView x, std::span<const SegmentProduct> runs, TensorView y) {
  CHECK(y.rows() == x.rows() && is_float(y.dtype), y.rows(), x.rows(), y.dtype);
  int64_t end = 0;
  for (const SegmentProduct& run : runs) {
    check_weights(run.w, x.dtype);
    CHECK(run.begin >= end && run.end >= run.begin && run.end <= x.rows(), run.begin, run.end, end,
          x.rows());
    CHECK(run.w.cols == x.cols() && run.w.rows <= y.cols(), run.w.cols, x.cols(), run.w.rows,
          y.cols());
    end = run.end;
  }
  backend.call()->gemm.runs(backend, x, stage_list(backend, runs), y);
}

void gemm_dx(Backend& backend, const GemmArgs& args, TensorView dx, bool accumulate) {
  check_gemm_dx(args, dx, accumulate);
  if (dx.rows() > 0) {
    backend.call()->gemm.dx_list(backend, staged(backend, Products(&args, 1)),
                                 stage_list(backend, Views(&dx, 1)), accumulate, /*most_rows=*/0);
  }
}

void gemm_dx_blocked_with_runs(Backend& backend, const GemmArgs& args, TensorView dx,
                               bool accumulate, const RunProducts& runs) {
  check_run_products(runs);
  if (!dx.empty()) {
    check_gemm_dx(args, dx, accumulate);
    CHECK(dx.rows() > 0 || runs.gradients.empty());
    check_output_blocks(args, dx);
  }
  GemmArgs staged_args = args;
  staged_args.runs = stage_list(backend, args.runs);
  backend.call()->gemm.dx_blocked(backend, staged_args, dx, accumulate, staged(backend, runs));
}

void gemm_dx_each(Backend& backend, std::span<const GemmArgs> products,
                  std::span<const TensorView> dx) {
  CHECK(products.size() == dx.size(), products.size(), dx.size());
  for (size_t i = 0; i < products.size(); ++i) check_gemm_dx(products[i], dx[i], false);
  backend.call()->gemm.dx_each(backend, staged(backend, products), stage_list(backend, dx));
}

void gemm_dx_list(Backend& backend, std::span<const GemmArgs> products,
                  std::span<const TensorView> dx, bool accumulate, int64_t most_rows) {
  CHECK(products.size() == dx.size(), products.size(), dx.size());
  for (size_t i = 0; i < products.size(); ++i) {
    check_gemm_dx(products[i], dx[i], accumulate);
    CHECK(dx[i].rows() > 0);
  }
  if (!products.empty()) {
    backend.call()->gemm.dx_list(backend, staged(backend, products), stage_list(backend, dx),
                                 accumulate, most_rows);
  }
}

void gemm_dw(Backend& backend, TensorView dy, TensorView x, std::span<const int64_t> sequence_ends,
             TensorView dw) {
  check_gemm_dw({.dy = dy, .x = x, .sequence_ends = sequence_ends, .dw = dw});
  if (x.rows() > 0) backend.call()->gemm.dw(backend, dy, x, stage_list(backend, sequence_ends), dw);
}

}  // namespace strata::ops
