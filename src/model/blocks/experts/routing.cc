// SPDX-License-Identifier: Apache-2.0
#include "model/blocks/experts/routing.h"

#include <algorithm>

#include "model/pass/pass.h"
#include "ops/elementwise.h"

namespace strata::model {
namespace {

// Copied to the host.
struct RoutedRows {
  std::vector<int64_t> expert_ends;
};

constexpr ScratchTag kTag = "routing";  // kept by every recompute policy

template <typename T>
IndexView<T> allocate_indices(Scratch& scratch, int64_t count, ScratchTag tag = kTag) {
  return {scratch.take(count * static_cast<int64_t>(sizeof(T)), tag), count};
}

ops::RouterScores score_kind_of(RouterKind kind) {
  switch (kind) {
    case RouterKind::kSoftmax:
      return ops::RouterScores::kSoftmax;
    case RouterKind::kSigmoid:
      return ops::RouterScores::kSigmoid;
    case RouterKind::kLogit:
      return ops::RouterScores::kLogit;
    case RouterKind::kSqrtSoftplus:
    case RouterKind::kTable:
      break;
  }
  return ops::RouterScores::kSqrtSoftplus;
}

ops::RouterArgs router_args(const BlockContext& context) {
  const auto& c = context.as<MoeConfig>();
  return {.scores = score_kind_of(c.router),
          .top_k = c.top_k,
          .norm = c.norm_topk,
          .scale = c.scale,
          .bias = context.values(kMoeRouterBias),
          .num_groups = c.num_groups,
          .top_groups = c.top_groups,
          .one_best = c.one_best};
}

// Adds the rows of each expert, whose groups end so.
void add_counts(std::span<const int64_t> ends, std::vector<int64_t>& counts) {
  for (size_t i = 0; i < counts.size(); ++i) counts[i] += ends[i] - (i == 0 ? 0 : ends[i - 1]);
}

// Adds the rows of each expert where the router's bias is to follow them. Counted where the choice
// is made, once, whatever is recomputed.
void add_expert_loads(Pass& pass, const BlockContext& context, const Routing& routing) {
  const size_t index = context.param(kMoeRouterBias).index;
  if (pass.base_gradients == nullptr) return;
  if (index >= pass.base_gradients->expert_loads.size()) return;
  pass.unless_counting([&] {
    std::vector<int64_t>& loads = pass.base_gradients->expert_loads[index];
    std::vector<int64_t>& ends = pass.lists.blocks.ensure_lists<RoutedRows>().expert_ends;
    ends.resize(loads.size());
    ops::to_host(pass.backend, routing.expert_ends, ends);
    add_counts(ends, loads);
  });
}

}  // namespace

Routing allocate_routing(Pass& pass, const MoeConfig& c) {
  Scratch& scratch = pass.backend.scratch();
  const int64_t rows = pass.num_tokens() * c.top_k;
  Routing routing;
  routing.expert_ids = allocate_indices<int32_t>(scratch, rows);
  routing.weights = scratch.take(DType::kF32, {rows}, kTag);
  routing.scores = scratch.take(DType::kF32, {pass.num_tokens(), c.num_experts}, kTag);
  routing.token_of_row = allocate_indices<int32_t>(scratch, rows);
  routing.row_of_slot = allocate_indices<int32_t>(scratch, rows);
  routing.row_weights = scratch.take(DType::kF32, {rows}, kTag);
  if (c.norms_paths) routing.unscaled_weights = scratch.take(DType::kF32, {rows}, kTag);
  routing.expert_ends = allocate_indices<int64_t>(scratch, c.num_experts);
  return routing;
}

void fill_routing(Pass& pass, const BlockContext& context, TensorView n, Routing& routing) {
  const ParamView& router = context.param(kMoeRouter);
  ops::gemm(pass.backend, {.x = n, .w = router.panel, .bias = context.values(kMoeLogitBias)},
            routing.scores);
  if (context.as<MoeConfig>().router == RouterKind::kTable) {
    ops::look_up_experts(pass.backend, context.values(kMoeTable), pass.tokens, routing.expert_ids);
    ops::route_to_given_experts(pass.backend, router_args(context), routing.scores,
                                routing.expert_ids, routing.weights);
  } else {
    ops::route(pass.backend, router_args(context), routing.scores, routing.expert_ids,
               routing.weights);
  }
  ops::sort_routes(pass.backend, context.as<MoeConfig>().top_k, routing.expert_ids, routing.weights,
                   {.token_of_row = routing.token_of_row,
                    .row_of_slot = routing.row_of_slot,
                    .row_weights = routing.row_weights,
                    .expert_ends = routing.expert_ends});
  routing.is_filled = true;
  add_expert_loads(pass, context, routing);
}

namespace {

// Rows of these experts, with memory for the parts of so many.
ops::GroupedRows group_rows(Pass& pass, IndexView<int32_t> token_of_row,
                            IndexView<int64_t> expert_ends, int64_t most_rows) {
  Scratch& scratch = pass.backend.scratch();
  const std::span<const int64_t> ends = pass.rows.ends();
  const int64_t most = ops::most_parts(most_rows, expert_ends.size(), std::ssize(ends));
  const ops::GroupedRows rows = {
      .num_rows = token_of_row.size(),
      .group_ends = expert_ends,
      .part_ends = allocate_indices<int64_t>(scratch, most, kTemporaryTag),
      .part_sequences = allocate_indices<int32_t>(scratch, most, kTemporaryTag),
      .sequence_ends = ends};
  ops::split_groups_by_sequence(pass.backend, token_of_row, rows);
  return rows;
}

// Where the rows of experts end, on the host.
struct DividedEnds {
  std::vector<int64_t> all, own;
};

// Fills `ends`, this rank's counted from its first row; returns which rows of the routing it has.
RowSpan divide_ends(Pass& pass, const ExpertRanks& ranks, const Routing& routing, int64_t most_rows,
                    DividedEnds& ends) {
  const AxisPart experts = ranks.share().own_experts(routing.expert_ends.size());
  ends.all.assign(static_cast<size_t>(routing.expert_ends.size()), most_rows);
  ends.own.assign(static_cast<size_t>(experts.count), most_rows);
  RowSpan rows = {0, most_rows};
  pass.unless_counting([&] {
    ops::to_host(pass.backend, routing.expert_ends, ends.all);
    rows = ranks.rows_of(ranks.share().rank, ends.all);
    const auto first = ends.all.begin() + experts.first;
    std::transform(first, first + experts.count, ends.own.begin(),
                   [&](int64_t end) { return end - rows.first; });
  });
  return rows;
}

}  // namespace

ops::GroupedRows group_rows_by_expert(Pass& pass, const Routing& routing) {
  return group_rows(pass, routing.token_of_row, routing.expert_ends, routing.num_rows());
}

int64_t most_expert_rows(const Pass& pass, const MoeConfig& c) {
  return pass.num_tokens() * std::min(c.top_k, pass.weights.own_experts(c.num_experts).count);
}

ExpertRows own_expert_rows(Pass& pass, const BlockContext& context, const Routing& routing) {
  const int64_t most = most_expert_rows(pass, context.as<MoeConfig>());
  const ExpertRanks* const ranks = pass.weights.expert_ranks();
  if (ranks == nullptr) {
    return {.groups = group_rows_by_expert(pass, routing),
            .token_of_row = routing.token_of_row,
            .weights = routing.row_weights,
            .in_routing = {0, routing.num_rows()},
            .most = most};
  }
  auto& ends = pass.lists.blocks.ensure_lists<DividedEnds>();
  const RowSpan rows = divide_ends(pass, *ranks, routing, most, ends);
  const auto own_ends =
      allocate_indices<int64_t>(pass.backend.scratch(), std::ssize(ends.own), kTemporaryTag);
  ops::from_host(pass.backend, ends.own, own_ends);
  const IndexView<int32_t> tokens(static_cast<int32_t*>(routing.token_of_row.data()) + rows.first,
                                  rows.count());
  return {.groups = group_rows(pass, tokens, own_ends, most),
          .token_of_row = tokens,
          .weights = routing.row_weights.part(rows.first, {rows.count()}),
          .in_routing = rows,
          .most = most,
          .all_ends = ends.all};
}

void routing_backward(Pass& pass, const BlockContext& context, const Routing& routing,
                      TensorView d_row_weights, TensorView d_logits) {
  const Scratch::Mark mark(pass.backend.scratch());
  const TensorView d_weights = pass.backend.scratch().take(DType::kF32, routing.weights.shape);
  const Shape column = {routing.num_rows(), 1};
  ops::gather(pass.backend, d_row_weights.reshape(column), routing.row_of_slot,
              d_weights.reshape(column));
  ops::route_backward(pass.backend, router_args(context), routing.scores, routing.expert_ids,
                      d_weights, d_logits);
}

}  // namespace strata::model
