// SPDX-License-Identifier: Apache-2.0
#include "ops/router.h"

#include "ops/checks.h"
#include "ops/rows.h"
#include "ops/stage.h"

namespace strata::ops {
namespace {

void check_args(const RouterArgs& args, const TensorView& scores, int64_t ids) {
  const int64_t experts = scores.cols();
  CHECK(scores.dtype == DType::kF32 && scores.dense(), scores.dtype);
  CHECK(args.top_k >= 1 && args.top_k <= experts, args.top_k, experts);
  CHECK(ids == scores.rows() * args.top_k, ids, scores.rows());
  CHECK(args.num_groups >= 1 && experts % args.num_groups == 0, args.num_groups, experts);
  CHECK(args.top_groups >= 1 && args.top_groups <= args.num_groups, args.top_groups);
  const bool is_plain = !args.norm && args.scale == 1.0 && args.bias.empty();
  CHECK(args.scores != RouterScores::kLogit || is_plain, args.norm, args.scale);
  CHECK(args.bias.empty() || args.bias.shape == Shape{experts}, args.bias.shape.to_string());
}

}  // namespace

void route(Backend& backend, const RouterArgs& args, TensorView logits,
           IndexView<int32_t> expert_ids, TensorView weights) {
  check_args(args, logits, expert_ids.size());
  CHECK(weights.dtype == DType::kF32 && weights.shape.num_elements() == expert_ids.size());
  backend.call()->router.route(backend, args, logits, expert_ids, weights);
}

void route_to_given_experts(Backend& backend, const RouterArgs& args, TensorView logits,
                            IndexView<int32_t> expert_ids, TensorView weights) {
  check_args(args, logits, expert_ids.size());
  CHECK(weights.dtype == DType::kF32 && weights.shape.num_elements() == expert_ids.size());
  backend.call()->router.route_to_given_experts(backend, args, logits, expert_ids, weights);
}

void look_up_experts(Backend& backend, TensorView table, std::span<const int32_t> tokens,
                     IndexView<int32_t> expert_ids) {
  CHECK(table.dtype == DType::kF32 && table.dense() && table.shape.rank() == 2,
        table.shape.to_string());
  CHECK(expert_ids.size() == std::ssize(tokens) * table.cols(), expert_ids.size(), tokens.size(),
        table.cols());
  backend.call()->router.look_up(backend, table, stage_list(backend, tokens), expert_ids);
}

void sort_routes(Backend& backend, int64_t top_k, IndexView<int32_t> expert_ids, TensorView weights,
                 const RouteRows& rows) {
  const Shape slots = {expert_ids.size()};
  CHECK(top_k >= 1 && slots[0] % top_k == 0, top_k, slots[0]);
  CHECK(weights.dtype == DType::kF32 && weights.dense() && weights.shape.num_elements() == slots[0],
        weights.shape.to_string(), slots[0]);
  CHECK(rows.row_weights.dtype == DType::kF32 && rows.row_weights.shape == slots,
        rows.row_weights.shape.to_string(), slots[0]);
  CHECK(
      rows.token_of_row.size() == expert_ids.size() && rows.row_of_slot.size() == expert_ids.size(),
      rows.token_of_row.size(), rows.row_of_slot.size(), expert_ids.size());
  backend.call()->router.sort(backend, top_k, expert_ids, weights, rows);
}

void balance_bias(Backend& backend, std::span<const int64_t> loads, double rate, TensorView bias) {
  CHECK(bias.dtype == DType::kF32 && bias.shape == Shape{std::ssize(loads)}, bias.shape.to_string(),
        loads.size());
  backend.call()->router.balance_bias(backend, stage_list(backend, loads), rate, bias);
}

void route_backward(Backend& backend, const RouterArgs& args, TensorView scores,
                    IndexView<int32_t> expert_ids, TensorView d_weights, TensorView d_logits) {
  check_args(args, scores, expert_ids.size());
  CHECK(d_logits.shape == scores.shape && d_logits.dense(), d_logits.shape.to_string());
  CHECK(is_float(d_logits.dtype), d_logits.dtype);
  CHECK(d_weights.dtype == DType::kF32 && d_weights.shape.num_elements() == expert_ids.size());
  backend.call()->router.backward(backend, args, scores, expert_ids, d_weights, d_logits);
}

}  // namespace strata::ops
