// SPDX-License-Identifier: Apache-2.0
#include "model/linear.h"

#include <algorithm>

#include "model/pass/deferred_products.h"
#include "model/tensor_ranks.h"
#include "ops/elementwise.h"

namespace strata::model {

LinearWeights linear_of(const Pass& pass, const BlockContext& context, int key) {
  const ParamView& matrix = context.param(key);
  LinearWeights linear = {.weight = matrix.panel,
                          .bias = {},
                          .weight_index = matrix.index,
                          .layer = context.layer,
                          .target = matrix.target};
  if (matrix.bias != kNoKey) {
    linear.bias = context.values(matrix.bias);
    linear.bias_index = context.param(matrix.bias).index;
  }
  if (pass.weights.tensor_ranks() != nullptr) linear.row = pass.weights.table()[matrix.index].row;
  return linear;
}

TensorView allocate_lora_h(const Pass& pass, const BlockContext& context, int key) {
  const int64_t rank = largest_rank(pass.rows, context.layer, context.param(key).target);
  if (rank == 0) return {};
  return pass.allocate_saved(kLoraTag, lora_flops(pass, context, key, rank), pass.dtype(),
                             {pass.num_tokens(), rank});
}

double linear_flops(const Pass& pass, const BlockContext& context, int key) {
  const PanelView& w = context.param(key).panel;
  return 2.0 * static_cast<double>(pass.num_tokens()) * static_cast<double>(w.rows) *
         static_cast<double>(w.cols);
}

double lora_flops(const Pass& pass, const BlockContext& context, int key, int64_t rank) {
  return 2.0 * static_cast<double>(pass.num_tokens() * rank) *
         static_cast<double>(context.param(key).panel.cols);
}

int64_t largest_rank(const RowGroups& rows, int64_t layer, int target) {
  int64_t rank = 0;
  rows.for_each_module(layer, target, [&](const AdapterSegment&, const LoraModule& module) {
    rank = std::max(rank, module.spec.rank);
  });
  return rank;
}

namespace {

// h = round(scale * x A^T), and h B^T, of the rows that have the module.
void fill_forward_lists(const Pass& pass, const RowGroups& rows, const LinearWeights& linear,
                        TensorView h) {
  std::vector<ops::SegmentProduct>& products = pass.lists.products;
  std::vector<ops::LowRankSegment>& low_rank = pass.lists.low_rank;
  products.clear();
  low_rank.clear();
  rows.for_each_module(linear.layer, linear.target, [&](const auto& run, const auto& module) {
    products.push_back(
        {.begin = run.begin, .end = run.end, .w = module.a_panel, .scale = module.scale});
    low_rank.push_back({.begin = run.begin,
                        .end = run.end,
                        .x = h.slice_cols(0, module.spec.rank),
                        .w = module.b_panel});
  });
}

void multiply_forward(Pass& pass, const RowGroups& rows, const LinearWeights& linear, TensorView x,
                      TensorView add, TensorView h, TensorView y) {
  const Scratch::Mark mark(pass.backend.scratch());
  if (h.empty()) {
    const int64_t rank = largest_rank(rows, linear.layer, linear.target);
    if (rank > 0) h = pass.backend.scratch().take(pass.dtype(), {x.rows(), rank});
  }
  fill_forward_lists(pass, rows, linear, h);
  // h = round(scale * x A^T)
  const PassLists& lists = pass.lists;
  if (!lists.products.empty()) ops::gemm_runs(pass.backend, x, lists.products, h);
  if (y.empty()) return;
  ops::gemm(pass.backend,
            {.x = x, .w = linear.weight, .runs = lists.low_rank, .bias = linear.bias, .add = add},
            y);
}

// x [T, k] are this rank's inputs and y [T, N] all outputs, of which it makes its own.
void tensor_parallel_forward(Pass& pass, const TensorRanks& ranks, const RowGroups& rows,
                             const LinearWeights& linear, TensorView x, TensorView add,
                             TensorView h, TensorView y) {
  const Scratch::Mark mark(pass.backend.scratch());
  const Deal outputs = linear.row->output_deal();
  const AxisPart part = outputs.part_of(ranks.share());
  const TensorView whole_x = pass.take(x.dtype, {x.rows(), linear.weight.cols});
  ranks.gather_columns(pass, x, linear.row->input_deal(), whole_x);
  LinearWeights own = linear;
  if (!own.bias.empty()) own.bias = own.bias.part(part.first, {part.count});
  const TensorView own_y = y.empty() ? y : pass.take(y.dtype, {y.rows(), part.count});
  const TensorView own_add = add.empty() ? add : add.slice_cols(part.first, part.end());
  multiply_forward(pass, rows, own, whole_x, own_add, h, own_y);
  if (!y.empty()) ranks.gather_columns(pass, own_y, outputs, y);
}

}  // namespace

void linear_forward(Pass& pass, const RowGroups& rows, const LinearWeights& linear, TensorView x,
                    TensorView add, TensorView h, TensorView y) {
  if (linear.row == nullptr || linear.row->shards.axis != ShardAxis::kGathered)
    return multiply_forward(pass, rows, linear, x, add, h, y);
  tensor_parallel_forward(pass, *pass.weights.tensor_ranks(), rows, linear, x, add, h, y);
}

namespace {

// What a backward step of a linear reads and writes of the rows of adapters.
struct LowRankBackward {
  const Pass& pass;
  const RowGroups& rows;
  const LinearWeights& linear;
  TensorView x, h, dy, d_h;

  [[nodiscard]] TensorView d_h_of(const AdapterSegment& run, const LoraModule& module) const {
    return d_h.slice_cols(0, module.spec.rank).slice_rows(run.begin, run.end);
  }

  // y += h B^T, h = scale * x A^T  =>  d(x A^T) = scale * dy B
  void append_d_h_product(const AdapterSegment& run, const LoraModule& module) const {
    pass.lists.low_rank_inputs.push_back(
        {.x = dy.slice_rows(run.begin, run.end), .w = module.b_panel, .scale = module.scale});
    pass.lists.low_rank_d_h.push_back(d_h_of(run, module));
  }

  // y += h B^T  =>  d_B += dy^T h;  h = scale * x A^T  =>  d_A += d(x A^T)^T x
  void append_gradient_products(const AdapterSegment& run, const LoraModule& module) const {
    if (!pass.trains(run)) return;
    const std::span<const int64_t> ends = rows.ends_of(run);
    pass.lists.low_rank_gradients.push_back(
        {.dy = dy.slice_rows(run.begin, run.end),
         .x = h.slice_cols(0, module.spec.rank).slice_rows(run.begin, run.end),
         .sequence_ends = ends,
         .dw = module.d_b});
    pass.lists.low_rank_gradients.push_back({.dy = d_h_of(run, module),
                                             .x = x.slice_rows(run.begin, run.end),
                                             .sequence_ends = ends,
                                             .dw = module.d_a});
  }

  void fill_pass_lists() const {
    PassLists& lists = pass.lists;
    lists.low_rank.clear();
    lists.low_rank_inputs.clear();
    lists.low_rank_d_h.clear();
    lists.low_rank_gradients.clear();
    rows.for_each_module(linear.layer, linear.target, [&](const auto& run, const auto& module) {
      lists.low_rank.push_back({.begin = run.begin,
                                .end = run.end,
                                .x = d_h.slice_cols(0, module.spec.rank),
                                .w = module.a_panel});
      append_d_h_product(run, module);
      append_gradient_products(run, module);
    });
  }
};

void accumulate_weight_gradient(Pass& pass, const RowGroups& rows, TensorView x, TensorView dy,
                                TensorView d_weight) {
  if (d_weight.empty()) return;
  if (pass.deferred != nullptr) {
    pass.deferred->defer_product(pass.backend, dy, x, rows.ends(), d_weight);
  } else {
    ops::gemm_dw(pass.backend, dy, x, rows.ends(), d_weight);
  }
}

void add_bias_gradient(Pass& pass, const LinearWeights& linear, TensorView dy) {
  if (pass.base_gradients == nullptr || linear.bias_index == ModelWeights::npos) return;
  ops::add_rows_into(pass.backend, dy, pass.base_gradients->d_weight[linear.bias_index]);
}

}  // namespace

void linear_backward(Pass& pass, const RowGroups& rows, const LinearWeights& linear, TensorView x,
                     TensorView h, TensorView dy, TensorView dx, bool accumulate,
                     TensorView d_weight) {
  Backend& backend = pass.backend;
  CHECK(pass.weights.tensor_ranks() == nullptr);  // commands refuse to train over tensor ranks
  const Scratch::Mark mark(backend.scratch());
  const int64_t rank = largest_rank(rows, linear.layer, linear.target);
  const TensorView d_h =
      rank == 0 ? TensorView() : backend.scratch().take(pass.dtype(), {x.rows(), rank});
  LowRankBackward{pass, rows, linear, x, h, dy, d_h}.fill_pass_lists();
  const PassLists& lists = pass.lists;
  accumulate_weight_gradient(pass, rows, x, dy, d_weight);
  add_bias_gradient(pass, linear, dy);
  // dx = dy W + d(x A^T) A
  ops::gemm_dx_blocked_with_runs(backend, {.x = dy, .w = linear.weight, .runs = lists.low_rank}, dx,
                                 accumulate,
                                 {.inputs = lists.low_rank_inputs,
                                  .d_h = lists.low_rank_d_h,
                                  .gradients = lists.low_rank_gradients,
                                  .num_rows = rows.num_rows_total(),
                                  .longest_run = rows.longest_run(),
                                  .distinct = rows.distinct()});
}

void linear_forward(Pass& pass, const BlockContext& context, int key, TensorView x, TensorView add,
                    TensorView h, TensorView y) {
  y = pass.unless_computed(y);
  if (y.empty() && (h.empty() || pass.is_computed(h))) return;  // nothing is left to make
  linear_forward(pass, pass.rows, linear_of(pass, context, key), x, add, h, y);
}

void linear_backward(Pass& pass, const BlockContext& context, int key, TensorView x, TensorView h,
                     TensorView dy, TensorView dx, bool accumulate) {
  const LinearWeights linear = linear_of(pass, context, key);
  linear_backward(pass, pass.rows, linear, x, h, dy, dx, accumulate,
                  pass.base_gradient(linear.weight_index));
}

}  // namespace strata::model
