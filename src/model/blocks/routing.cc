#include "model/routing.h"

#include <algorithm>

#include "model/pass.h"

namespace strata::model {
namespace {

template <typename T>
std::span<T> take_span(Scratch& scratch, int64_t count) {
  return {static_cast<T*>(scratch.take(count * static_cast<int64_t>(sizeof(T)))),
          static_cast<size_t>(count)};
}

// Sorts the pairs by expert; tokens stay ascending within one.
void sort_rows(const Pass& pass, Routing& routing) {
  const int64_t top_k = pass.weights.config().moe.top_k;
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

}  // namespace

ops::RouterArgs router_args(const Pass& pass, int64_t layer) {
  const MoeConfig& c = pass.weights.config().moe;
  const bool sigmoid = c.router == RouterKind::kSigmoid;
  return {.scores = sigmoid ? ops::RouterScores::kSigmoid : ops::RouterScores::kSoftmax,
          .top_k = c.top_k,
          .norm = c.norm_topk,
          .scale = c.scale,
          .bias = pass.weights.layer(layer).vec(LayerParam::kRouterBias),
          .num_groups = c.num_groups,
          .top_groups = c.top_groups};
}

Routing take_routing(Pass& pass) {
  const MoeConfig& c = pass.weights.config().moe;
  Scratch& scratch = pass.backend.scratch();
  const int64_t rows = pass.num_tokens() * c.top_k;
  Routing routing;
  routing.expert_ids = take_span<int32_t>(scratch, rows);
  routing.weights = scratch.take(DType::kF32, {rows});
  routing.scores = scratch.take(DType::kF32, {pass.num_tokens(), c.num_experts});
  routing.token_of_row = take_span<int32_t>(scratch, rows);
  routing.row_of_slot = take_span<int32_t>(scratch, rows);
  routing.row_weights = scratch.take(DType::kF32, {rows});
  routing.expert_ends = take_span<int64_t>(scratch, c.num_experts);
  return routing;
}

int64_t routing_bytes(const ModelConfig& config, int64_t tokens) {
  const MoeConfig& c = config.moe;
  return 5 * Arena::aligned(tokens * c.top_k * 4) + Arena::aligned(tokens * c.num_experts * 4) +
         Arena::aligned(c.num_experts * 8);
}

void make_routing(Pass& pass, int64_t layer, TensorView n, Routing& routing) {
  const PanelView router = pass.weights.layer(layer).panel(LayerParam::kRouter);
  ops::gemm(pass.backend, {.x = n, .w = router}, routing.scores);
  ops::route(pass.backend, router_args(pass, layer), routing.scores, routing.expert_ids,
             routing.weights);
  sort_rows(pass, routing);
  routing.known = true;
}

void routing_backward(Pass& pass, int64_t layer, const Routing& routing, TensorView d_row_weights,
                      TensorView d_logits) {
  const Scratch::Mark mark(pass.backend.scratch());
  const TensorView d_weights = pass.backend.scratch().take(DType::kF32, routing.weights.shape);
  for (size_t slot = 0; slot < routing.row_of_slot.size(); ++slot) {
    d_weights.f32()[slot] = d_row_weights.f32()[routing.row_of_slot[slot]];
  }
  ops::route_backward(pass.backend, router_args(pass, layer), routing.scores, routing.expert_ids,
                      d_weights, d_logits);
}

}  // namespace strata::model
