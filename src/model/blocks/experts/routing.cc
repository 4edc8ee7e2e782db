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
  routing.expert_ids = take_indices<int32_t>(scratch, rows, kTag);
  routing.weights = scratch.take(DType::kF32, {rows}, kTag);
  routing.scores = scratch.take(DType::kF32, {pass.num_tokens(), c.num_experts}, kTag);
  routing.token_of_row = take_indices<int32_t>(scratch, rows, kTag);
  routing.row_of_slot = take_indices<int32_t>(scratch, rows, kTag);
  routing.row_weights = scratch.take(DType::kF32, {rows}, kTag);
  if (c.norms_paths) routing.unscaled_weights = scratch.take(DType::kF32, {rows}, kTag);
  routing.expert_ends = take_indices<int64_t>(scratch, c.num_experts, kTag);
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
