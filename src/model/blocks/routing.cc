#include "model/blocks/routing.h"

#include <algorithm>

#include "model/pass.h"

namespace strata::model {
namespace {

constexpr ScratchTag kTag = "routing";  // kept by every recompute policy

template <typename T>
std::span<T> take_span(Scratch& scratch, int64_t count) {
  return {static_cast<T*>(scratch.take(count * static_cast<int64_t>(sizeof(T)), kTag)),
          static_cast<size_t>(count)};
}

// Sorts the pairs by expert; tokens stay ascending within one.
void sort_rows(int64_t top_k, Routing& routing) {
  std::fill(routing.expert_ends.begin(), routing.expert_ends.end(), 0);
  for (const int32_t e : routing.expert_ids) ++routing.expert_ends[static_cast<size_t>(e)];
  int64_t begin = 0;
  for (int64_t& end : routing.expert_ends) {
    const int64_t count = end;
    end = begin;  // the next free row, for now
    begin += count;
  }
  for (size_t slot = 0; slot < routing.expert_ids.size(); ++slot) {
    const auto e = static_cast<size_t>(routing.expert_ids[slot]);
    const auto row = static_cast<size_t>(routing.expert_ends[e]++);
    routing.token_of_row[row] = static_cast<int32_t>(static_cast<int64_t>(slot) / top_k);
    routing.row_of_slot[slot] = static_cast<int32_t>(row);
    routing.row_weights.f32()[row] = routing.weights.f32()[slot];
  }
}

ops::RouterScores scores_of(RouterKind kind) {
  switch (kind) {
    case RouterKind::kSoftmax:
      return ops::RouterScores::kSoftmax;
    case RouterKind::kSigmoid:
      return ops::RouterScores::kSigmoid;
    case RouterKind::kSqrtSoftplus:
    case RouterKind::kTable:
      break;
  }
  return ops::RouterScores::kSqrtSoftplus;
}

ops::RouterArgs router_args(const BlockContext& context) {
  const auto& c = context.as<MoeConfig>();
  return {.scores = scores_of(c.router),
          .top_k = c.top_k,
          .norm = c.norm_topk,
          .scale = c.scale,
          .bias = context.values(kMoeRouterBias),
          .num_groups = c.num_groups,
          .top_groups = c.top_groups};
}

// The experts that the table gives each token.
void look_up(const Pass& pass, const BlockContext& context, Routing& routing) {
  const TensorView table = context.values(kMoeTable);  // loading saw to its values
  const int64_t top_k = context.as<MoeConfig>().top_k;
  for (size_t t = 0; t < pass.tokens.size(); ++t) {
    const float* experts = table.f32() + pass.tokens[t] * top_k;
    for (int64_t k = 0; k < top_k; ++k) {
      routing.expert_ids[t * static_cast<size_t>(top_k) + static_cast<size_t>(k)] =
          static_cast<int32_t>(experts[k]);
    }
  }
}

}  // namespace

Routing take_routing(Pass& pass, const MoeConfig& c) {
  Scratch& scratch = pass.backend.scratch();
  const int64_t rows = pass.num_tokens() * c.top_k;
  Routing routing;
  routing.expert_ids = take_span<int32_t>(scratch, rows);
  routing.weights = scratch.take(DType::kF32, {rows}, kTag);
  routing.scores = scratch.take(DType::kF32, {pass.num_tokens(), c.num_experts}, kTag);
  routing.token_of_row = take_span<int32_t>(scratch, rows);
  routing.row_of_slot = take_span<int32_t>(scratch, rows);
  routing.row_weights = scratch.take(DType::kF32, {rows}, kTag);
  routing.expert_ends = take_span<int64_t>(scratch, c.num_experts);
  return routing;
}

void make_routing(Pass& pass, const BlockContext& context, TensorView n, Routing& routing) {
  const ParamView& router = context.param(kMoeRouter);
  ops::gemm(pass.backend, {.x = n, .w = router.panel}, routing.scores);
  if (context.as<MoeConfig>().router == RouterKind::kTable) {
    if (!pass.backend.is_counting()) look_up(pass, context, routing);
    ops::route_chosen(pass.backend, router_args(context), routing.scores, routing.expert_ids,
                      routing.weights);
  } else {
    ops::route(pass.backend, router_args(context), routing.scores, routing.expert_ids,
               routing.weights);
  }
  if (!pass.backend.is_counting()) sort_rows(context.as<MoeConfig>().top_k, routing);
  routing.known = true;
}

void routing_backward(Pass& pass, const BlockContext& context, const Routing& routing,
                      TensorView d_row_weights, TensorView d_logits) {
  const Scratch::Mark mark(pass.backend.scratch());
  const TensorView d_weights = pass.backend.scratch().take(DType::kF32, routing.weights.shape);
  const size_t num_slots = pass.backend.is_counting() ? 0 : routing.row_of_slot.size();
  for (size_t slot = 0; slot < num_slots; ++slot) {
    d_weights.f32()[slot] = d_row_weights.f32()[routing.row_of_slot[slot]];
  }
  ops::route_backward(pass.backend, router_args(context), routing.scores, routing.expert_ids,
                      d_weights, d_logits);
}

}  // namespace strata::model
