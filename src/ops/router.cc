#include "ops/router.h"

#include "ops/checks.h"
#include "ops/cpu/router.h"

namespace strata::ops {
namespace {

void check_args(const RouterArgs& args, const TensorView& scores, size_t ids) {
  const int64_t experts = scores.cols();
  CHECK(scores.dtype == DType::kF32 && scores.dense(), scores.dtype);
  CHECK(args.top_k >= 1 && args.top_k <= experts, args.top_k, experts);
  CHECK(static_cast<int64_t>(ids) == scores.rows() * args.top_k, ids, scores.rows());
  CHECK(args.num_groups >= 1 && experts % args.num_groups == 0, args.num_groups, experts);
  CHECK(args.top_groups >= 1 && args.top_groups <= args.num_groups, args.top_groups);
  CHECK(args.bias.empty() || args.bias.shape == Shape{experts}, args.bias.shape.to_string());
}

}  // namespace

void route(Backend& backend, const RouterArgs& args, TensorView logits,
           std::span<int32_t> expert_ids, TensorView weights) {
  check_args(args, logits, expert_ids.size());
  CHECK(weights.dtype == DType::kF32 && weights.shape.num_elements() == std::ssize(expert_ids));
  cpu::route(backend, args, logits, expert_ids, weights);
}

void route_chosen(Backend& backend, const RouterArgs& args, TensorView logits,
                  std::span<const int32_t> expert_ids, TensorView weights) {
  check_args(args, logits, expert_ids.size());
  CHECK(weights.dtype == DType::kF32 && weights.shape.num_elements() == std::ssize(expert_ids));
  cpu::route_chosen(backend, args, logits, expert_ids, weights);
}

void route_backward(Backend& backend, const RouterArgs& args, TensorView scores,
                    std::span<const int32_t> expert_ids, TensorView d_weights,
                    TensorView d_logits) {
  check_args(args, scores, expert_ids.size());
  CHECK(d_logits.shape == scores.shape && d_logits.dense(), d_logits.shape.to_string());
  CHECK(is_float(d_logits.dtype), d_logits.dtype);
  CHECK(d_weights.dtype == DType::kF32 && d_weights.shape.num_elements() == std::ssize(expert_ids));
  cpu::route_backward(backend, args, scores, expert_ids, d_weights, d_logits);
}

}  // namespace strata::ops
