// SPDX-License-Identifier: Apache-2.0
#include "ops/gemm_groups.h"

#include "ops/checks.h"
#include "ops/rows.h"
#include "ops/stage.h"

namespace strata::ops {
namespace {

void check_rows(const GroupedRows& rows) {
  CHECK(!rows.group_ends.empty() && !rows.sequence_ends.empty());
  int64_t tokens = 0;
  for (const int64_t end : rows.sequence_ends) {
    CHECK(end >= tokens, end, tokens);
    tokens = end;
  }
  const int64_t most =
      most_parts(rows.num_rows, rows.group_ends.size(), std::ssize(rows.sequence_ends));
  CHECK(rows.part_ends.size() >= most && rows.part_sequences.size() >= most, rows.part_ends.size(),
        rows.part_sequences.size(), most);
}

template <typename Item>
void check_sequences(const GroupedRows& rows, std::span<const Item> items) {
  int64_t end = 0;
  for (const Item& item : items) {
    CHECK(item.first >= end && item.end >= item.first && item.end <= std::ssize(rows.sequence_ends),
          item.first, item.end, end, rows.sequence_ends.size());
    end = item.end;
  }
}

// `summed` and `made` are the two axes of the weights.
void check_groups(const GroupedArgs& args, int64_t summed, int64_t made, const TensorView& out) {
  check_rows(args.rows);
  check_sequences(args.rows, args.runs);
  check_weights(args.w.first, args.x.dtype);
  CHECK(args.x.rows() == args.rows.num_rows && args.x.cols() == summed, args.x.shape.to_string(),
        args.rows.num_rows, summed);
  CHECK(out.rows() == args.x.rows() && out.cols() == made && is_float(out.dtype),
        out.shape.to_string(), args.x.rows(), made, out.dtype);
  for (const GroupedLowRank& run : args.runs) {
    check_weights(run.w.first, run.x.dtype);
    CHECK(run.x.dtype == args.x.dtype && run.x.rows() == args.x.rows(), run.x.dtype, run.x.rows(),
          args.x.rows());
  }
}

void check_products(const GroupedRows& rows, const TensorView& x, const TensorView& y,
                    std::span<const GroupedProduct> products) {
  check_rows(rows);
  check_sequences(rows, products);
  CHECK(x.rows() == rows.num_rows && y.rows() == rows.num_rows && is_float(y.dtype), x.rows(),
        y.rows(), rows.num_rows, y.dtype);
}

// Counts the work of the products themselves, without their low-rank terms.
void count_product_flops(Backend& backend, const GroupedArgs& args) {
  if (!backend.is_counting()) return;
  const PanelView& w = args.w.first;
  backend.count_flops(2.0 * static_cast<double>(args.x.rows() * w.rows) *
                      static_cast<double>(w.cols));
}

GroupedRows staged(Backend& backend, GroupedRows rows) {
  rows.sequence_ends = stage_list(backend, rows.sequence_ends);
  return rows;
}

GroupedArgs staged(Backend& backend, GroupedArgs args) {
  args.rows = staged(backend, args.rows);
  args.runs = stage_list(backend, args.runs);
  return args;
}

}  // namespace

void split_groups_by_sequence(Backend& backend, IndexView<int32_t> token_of_row,
                              const GroupedRows& rows) {
  check_rows(rows);
  CHECK(token_of_row.size() == rows.num_rows, token_of_row.size(), rows.num_rows);
  backend.call()->gemm_groups.divide(backend, token_of_row, staged(backend, rows));
}

void gemm_groups(Backend& backend, const GroupedArgs& args, TensorView y) {
  const PanelView& w = args.w.first;
  check_groups(args, w.cols, w.rows, y);
  for (const GroupedLowRank& run : args.runs) {
    CHECK(run.w.first.rows == w.rows && run.w.first.cols == run.x.cols() &&
              run.w.first.width == w.width,
          run.w.first.rows, run.w.first.cols, run.w.first.width);
  }
  const TensorView& bias = args.bias.first;
  CHECK(bias.empty() || (bias.dtype == DType::kF32 && bias.shape == Shape{w.rows}), bias.dtype,
        bias.shape.to_string(), w.rows);
  count_product_flops(backend, args);
  if (y.rows() > 0) backend.call()->gemm_groups.products(backend, staged(backend, args), y);
}

void gemm_groups_dx(Backend& backend, const GroupedArgs& args, TensorView dx, bool accumulate) {
  const PanelView& w = args.w.first;
  check_groups(args, w.rows, w.cols, dx);
  CHECK(args.bias.first.empty());
  CHECK(!accumulate || dx.dtype == DType::kF32, dx.dtype);
  for (const GroupedLowRank& run : args.runs) {
    CHECK(run.w.first.rows == run.x.cols() && run.w.first.cols == w.cols, run.w.first.rows,
          run.w.first.cols);
  }
  if (dx.rows() == 0) return;
  backend.call()->gemm_groups.products_dx(backend, staged(backend, args), dx, accumulate);
}

void gemm_group_runs(Backend& backend, const GroupedRows& rows, TensorView x,
                     std::span<const GroupedProduct> products, TensorView y) {
  check_products(rows, x, y, products);
  for (const GroupedProduct& product : products) {
    const PanelView& w = product.w.first;
    check_weights(w, x.dtype);
    CHECK(w.cols == x.cols() && w.rows <= y.cols(), w.cols, x.cols(), w.rows, y.cols());
  }
  if (rows.num_rows == 0 || products.empty()) return;
  backend.call()->gemm_groups.runs(backend, staged(backend, rows), x, stage_list(backend, products),
                                   y);
}

void gemm_group_runs_dx(Backend& backend, const GroupedRows& rows, TensorView dy,
                        std::span<const GroupedProduct> products, TensorView dx, bool accumulate) {
  check_products(rows, dy, dx, products);
  for (const GroupedProduct& product : products) {
    const PanelView& w = product.w.first;
    check_weights(w, dy.dtype);
    CHECK(w.rows == dy.cols() && w.cols <= dx.cols(), w.rows, dy.cols(), w.cols, dx.cols());
    CHECK(!accumulate || (dx.dtype == DType::kF32 && product.scale == 1.0f), dx.dtype,
          product.scale);
  }
  if (rows.num_rows == 0 || products.empty()) return;
  backend.call()->gemm_groups.runs_dx(backend, staged(backend, rows), dy,
                                      stage_list(backend, products), dx, accumulate);
}

void scale_group_runs(Backend& backend, const GroupedRows& rows, TensorView x,
                      std::span<const GroupedProduct> products, TensorView y) {
  check_products(rows, x, y, products);
  CHECK(is_float(x.dtype), x.dtype);
  for (const GroupedProduct& product : products) {
    const int64_t cols = product.w.first.cols;
    CHECK(cols <= x.cols() && cols <= y.cols(), cols, x.cols(), y.cols());
  }
  if (rows.num_rows == 0 || products.empty()) return;
  backend.call()->gemm_groups.scale_runs(backend, staged(backend, rows), x,
                                         stage_list(backend, products), y);
}

void gemm_dw_groups(Backend& backend, const GroupedRows& rows,
                    std::span<const GroupedGradient> gradients) {
  check_rows(rows);
  check_sequences(rows, gradients);
  for (const auto& [first, end, dy, x, dw] : gradients) {
    CHECK(is_float(x.dtype) && dy.dtype == x.dtype, x.dtype, dy.dtype);
    CHECK(dw.first.dtype == DType::kF32, dw.first.dtype);
    CHECK(x.rows() == rows.num_rows && dy.rows() == rows.num_rows && x.rows() <= INT32_MAX,
          x.rows(), dy.rows(), rows.num_rows);
    CHECK(dw.first.rows() == dy.cols() && dw.first.cols() == x.cols(), dw.first.rows(), dy.cols(),
          dw.first.cols(), x.cols());
  }
  if (rows.num_rows == 0 || gradients.empty()) return;
  backend.call()->gemm_groups.dw(backend, staged(backend, rows), stage_list(backend, gradients));
}

}  // namespace strata::ops
