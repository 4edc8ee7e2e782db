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
  if (y.empty() || linear.weight.rows == 0) return;  // of a tensor rank without an output
  ops::gemm(pass.backend,
            {.x = x, .w = linear.weight, .runs = lists.low_rank, .bias = linear.bias, .add = add},
            y);
}

bool is_divided(const LinearWeights& linear) {
  return linear.row != nullptr && linear.row->whole_outputs > 0;
}
bool has_gathered_inputs(const LinearWeights& linear) {
  return linear.row->shards.axis == ShardAxis::kGathered;
}

// A linear's inputs, in scratch where it has this rank's alone.
TensorView whole_inputs(const Pass& pass, const TensorRanks& ranks, const LinearWeights& linear,
                        TensorView x) {
  return has_gathered_inputs(linear) ? ranks.gather_whole(pass, x, linear.row->input_deal()) : x;
}

// y [T, n] are this rank's outputs or, of a matrix whose inputs are gathered, [T, N] all of them.
void tensor_parallel_forward(Pass& pass, const TensorRanks& ranks, const RowGroups& rows,
                             const LinearWeights& linear, TensorView x, TensorView add,
                             TensorView h, TensorView y) {
  const Scratch::Mark mark(pass.backend.scratch());
  const ParamRow& row = *linear.row;
  const bool is_gathered = has_gathered_inputs(linear);
  const int64_t first = row.first_output, count = linear.weight.rows;
  LinearWeights own = linear;
  if (!own.bias.empty()) own.bias = own.bias.part(first, {count});
  const bool makes_more = is_gathered || row.num_lead_outputs > 0;
  const TensorView made = y.empty() || !makes_more ? y : pass.take(y.dtype, {x.rows(), count});
  CHECK(add.empty() || is_gathered);
  const TensorView own_add = add.empty() ? add : add.slice_cols(first, first + count);
  multiply_forward(pass, rows, own, whole_inputs(pass, ranks, linear, x), own_add, h, made);
  if (y.empty() || !makes_more) return;
  const TensorView own_y = made.slice_cols(row.num_lead_outputs, count);
  if (!is_gathered) return ops::copy(pass.backend, own_y, y);
  ranks.gather_columns(pass, own_y, row.output_deal(), y);
}

}  // namespace

void linear_forward(Pass& pass, const RowGroups& rows, const LinearWeights& linear, TensorView x,
                    TensorView add, TensorView h, TensorView y) {
  if (!is_divided(linear)) return multiply_forward(pass, rows, linear, x, add, h, y);
  tensor_parallel_forward(pass, *pass.weights.tensor_ranks(), rows, linear, x, add, h, y);
}

namespace {

// What a backward step of a linear reads and writes of the rows of adapters: x [T, K], dy [T, N].
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
        {.x = dy.slice_rows(run.begin, run.end), .w = module.whole_b_panel, .scale = module.scale});
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

ops::RunProducts run_products(const Pass& pass, const RowGroups& rows) {
  return {.inputs = pass.lists.low_rank_inputs,
          .d_h = pass.lists.low_rank_d_h,
          .gradients = pass.lists.low_rank_gradients,
          .num_rows = rows.num_rows_total(),
          .longest_run = rows.longest_run(),
          .distinct = rows.distinct()};
}

TensorView allocate_d_h(const Pass& pass, const RowGroups& rows, const LinearWeights& linear,
                        TensorView x) {
  const int64_t rank = largest_rank(rows, linear.layer, linear.target);
  return rank == 0 ? TensorView() : pass.take(pass.dtype(), {x.rows(), rank});
}

// The low-rank terms of these rows alone, in `part`.
std::span<const ops::LowRankSegment> runs_of_rows(std::span<const ops::LowRankSegment> runs,
                                                  const AxisPart& rows,
                                                  std::vector<ops::LowRankSegment>& part) {
  part.clear();
  for (const ops::LowRankSegment& run : runs) {
    const int64_t begin = std::max(run.begin, rows.first), end = std::min(run.end, rows.end());
    if (begin >= end) continue;
    part.push_back({.begin = begin - rows.first,
                    .end = end - rows.first,
                    .x = run.x.slice_rows(rows.first, rows.end()),
                    .w = run.w});
  }
  return part;
}

// dx of the outputs of all ranks, as one process sums them. dy_of_chain [T, n] has the columns that
// this rank adds.
void tensor_parallel_dx(const Pass& pass, const TensorRanks& ranks, const LinearWeights& linear,
                        TensorView dy_of_chain, TensorView dx, bool accumulate) {
  const Deal outputs = linear.row->output_deal();
  const int64_t first = linear.row->first_output, from = outputs.chain_of(ranks.share()).first;
  PassLists& lists = pass.lists;
  const auto multiply = [&](const AxisPart& rows, const AxisPart& part, bool continues,
                            TensorView sums) {
    const bool is_last = part.end() == outputs.size;
    const std::span<const ops::LowRankSegment> runs =
        is_last ? runs_of_rows(lists.low_rank, rows, lists.low_rank_part)
                : std::span<const ops::LowRankSegment>();
    ops::gemm_dx(pass.backend,
                 {.x = dy_of_chain.slice_rows(rows.first, rows.end())
                           .slice_cols(part.first - from, part.end() - from),
                  .w = linear.weight.slice_rows(part.first - first, part.end() - first),
                  .runs = runs},
                 sums, continues);
  };
  const DxChain chain = {
      .outputs = outputs,
      .num_rows = dx.rows(),
      .num_inputs = linear.weight.cols,
      .outputs_at_once = linear.weight.dtype == DType::kF32 ? ops::kChainOutputs : 0,
      .rows_at_once = TensorRanks::kChainRows,
      .accumulate = accumulate,
      .multiply = multiply};
  if (!has_gathered_inputs(linear)) return ranks.sum_over_outputs(pass, chain, dx);
  ranks.sum_over_outputs_of_inputs(pass, chain, linear.row->input_deal(), dx);
}

bool trains_bias(const Pass& pass, const LinearWeights& linear) {
  return pass.base_gradients != nullptr && linear.bias_index != ModelWeights::npos;
}
// The weights of a block's linear, which every rank says alike, also one that has no row of them.
bool trains_weights(const Pass& pass, const LinearWeights& linear) {
  return pass.base_gradients != nullptr && linear.weight_index != ModelWeights::npos;
}

// dy [T, n] are the gradients of this rank's outputs or, of a head and of a matrix whose inputs are
// gathered, [T, N] of all. Gradients of adapters and of biases, which are whole on every rank, are
// made on each, and those of its rows of the matrix, also of copies.
void tensor_parallel_backward(Pass& pass, const TensorRanks& ranks, const RowGroups& rows,
                              const LinearWeights& linear, TensorView x, TensorView h,
                              TensorView dy, TensorView dx, bool accumulate, TensorView d_weight) {
  const Scratch::Mark mark(pass.backend.scratch());
  const ParamRow& row = *linear.row;
  const Deal outputs = row.output_deal();
  const AxisPart chain = outputs.chain_of(ranks.share());
  const TensorView d_h = allocate_d_h(pass, rows, linear, x);
  const bool takes_whole_dy = !d_h.empty() || trains_bias(pass, linear) ||
                              !outputs.chains_own_places(ranks.share().num_ranks);
  if (dy.cols() < outputs.size && takes_whole_dy) dy = ranks.gather_whole(pass, dy, outputs);
  if (!d_h.empty() || trains_weights(pass, linear)) x = whole_inputs(pass, ranks, linear, x);
  if (!d_h.empty()) {
    LowRankBackward{pass, rows, linear, x, h, dy, d_h}.fill_pass_lists();
    ops::gemm_dx_blocked_with_runs(pass.backend, {}, {}, false, run_products(pass, rows));
  } else {
    pass.lists.low_rank.clear();
  }
  const bool is_whole = dy.cols() == outputs.size;
  if (!d_weight.empty()) {
    const int64_t end = row.first_output + d_weight.rows();
    const TensorView of_rows = is_whole ? dy.slice_cols(row.first_output, end) : dy;
    accumulate_weight_gradient(pass, rows, x, of_rows, d_weight);
  }
  add_bias_gradient(pass, linear, dy);
  if (dx.empty()) return;
  if (is_whole) dy = dy.slice_cols(chain.first, chain.end());
  tensor_parallel_dx(pass, ranks, linear, dy, dx, accumulate);
}

}  // namespace

void linear_backward(Pass& pass, const RowGroups& rows, const LinearWeights& linear, TensorView x,
                     TensorView h, TensorView dy, TensorView dx, bool accumulate,
                     TensorView d_weight) {
  if (is_divided(linear)) {
    return tensor_parallel_backward(pass, *pass.weights.tensor_ranks(), rows, linear, x, h, dy, dx,
                                    accumulate, d_weight);
  }
  const Scratch::Mark mark(pass.backend.scratch());
  const TensorView d_h = allocate_d_h(pass, rows, linear, x);
  LowRankBackward{pass, rows, linear, x, h, dy, d_h}.fill_pass_lists();
  accumulate_weight_gradient(pass, rows, x, dy, d_weight);
  add_bias_gradient(pass, linear, dy);
  // dx = dy W + d(x A^T) A
  ops::gemm_dx_blocked_with_runs(pass.backend,
                                 {.x = dy, .w = linear.weight, .runs = pass.lists.low_rank}, dx,
                                 accumulate, run_products(pass, rows));
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
