#include "engine/pipeline/stage_plan.h"

#include <algorithm>

namespace strata::engine {
namespace {

using schedule::Op;

// Calls body with the actions of a stage, in their order.
template <typename Body>
void for_each_action(const PipelinePlan& plan, int stage, Body body) {
  const int rank = plan.ranks[static_cast<size_t>(stage)];
  for (const schedule::Slot& slot : plan.table.rows[static_cast<size_t>(rank)]) {
    for (const schedule::Action& action : slot.actions()) {
      if (action.stage == stage) body(action.op);
    }
  }
}

// States (or gradients) between the action that computes them and the one that sends them, at most;
// what stays on the rank, or has nowhere to go, is let go at once.
int64_t peak_waiting(const PipelinePlan& plan, int stage, bool forward) {
  const Op sends = forward ? Op::kSendForward : Op::kSendBackward;
  const int to_stage = forward ? stage + 1 : stage - 1;
  const bool waits =
      to_stage >= 0 && to_stage < plan.num_stages() &&
      plan.ranks[static_cast<size_t>(to_stage)] != plan.ranks[static_cast<size_t>(stage)];
  int64_t waiting = 0, most = 0;
  for_each_action(plan, stage, [&](Op op) {
    const bool computes = forward ? op == Op::kForward : schedule::is_backward(op);
    if (computes) most = std::max(most, waiting + 1);
    if (computes && waits) ++waiting;
    if (op == sends) --waiting;
  });
  return most;
}

int64_t border_bytes(const PipelinePlan& plan, int stage, Engine& engine, int64_t tokens) {
  const int64_t values = tokens * engine.config().state_width();
  const DType dtype = engine.model().weights->compute_dtype();
  const bool ends = stage + 1 == plan.num_stages();
  const int64_t states = ends ? 0 : peak_waiting(plan, stage, /*forward=*/true);
  const int64_t gradients = peak_waiting(plan, stage, /*forward=*/false);
  return values * (states * dtype_bytes(dtype) + gradients * dtype_bytes(DType::kF32));
}

int64_t training_bytes(Engine& engine, const PlanShape& shape) {
  int64_t bytes = 0;
  for (const auto& [slot, adapter] : engine.adapters()) bytes += adapter->num_bytes();
  if (!shape.train_base) return bytes;
  // Masters, gradients and two moments, of which some parameters may have one alone.
  const model::ModelWeights& weights = *engine.model().weights;
  const train::BaseTrainer& trainer = engine.base_trainer();
  bytes += (3 * weights.num_parameters() + trainer.num_second_moments()) * dtype_bytes(DType::kF32);
  const model::BaseGradients& gradients = *engine.base_trainer().gradients();
  for (const TensorView& apart :
       {gradients.d_tied_head, gradients.d_mtp_embedding, gradients.d_mtp_head}) {
    if (!apart.empty()) bytes += apart.num_bytes();
  }
  return bytes;
}

}  // namespace

int64_t peak_live(const PipelinePlan& plan, int stage) {
  int64_t live = 0, most = 0;
  for_each_action(plan, stage, [&](Op op) {
    if (op == Op::kForward) most = std::max(most, ++live);
    if (schedule::is_backward(op)) --live;
  });
  return most;
}

int64_t peak_deferred(const PipelinePlan& plan, int stage) {
  int64_t waiting = 0, most = 0;
  for_each_action(plan, stage, [&](Op op) {
    if (op == Op::kInputGrad) most = std::max(most, ++waiting);
    if (op == Op::kWeightGrad) --waiting;
  });
  return most;
}

std::vector<StagePlan> plan_stages(Pipeline& pipeline, const PlanShape& shape) {
  const PipelinePlan& plan = pipeline.plan();
  constexpr size_t kValues = 6;
  PlanShape apart = shape;
  apart.in_stages = true;
  // Bytes are exact in double; each stage has its own place, and the others' hold zeroes.
  std::vector<double> own(kValues * plan.layers.size()), all;
  for (const auto& runner : pipeline.stages()) {
    Engine& engine = runner->engine();
    apart.defers = plan.defers(runner->stage());
    const PassPlan pass = plan_pass(engine, apart);
    const int64_t bytes[kValues] = {engine.model().weights->num_bytes(),
                                    training_bytes(engine, shape),
                                    pass.total(),
                                    pass.held_bytes,
                                    border_bytes(plan, runner->stage(), engine, shape.pass_tokens),
                                    pass.deferred_bytes};
    std::copy_n(bytes, kValues, own.data() + kValues * static_cast<size_t>(runner->stage()));
  }
  pipeline.comm().all_gather(own, all);
  std::vector<StagePlan> stages(plan.layers.size());
  for (size_t stage = 0; stage < stages.size(); ++stage) {
    int64_t sums[kValues] = {};
    for (size_t at = kValues * stage; at < all.size(); at += own.size()) {
      for (size_t i = 0; i < kValues; ++i) sums[i] += static_cast<int64_t>(all[at + i]);
    }
    stages[stage] = {.weight_bytes = sums[0],
                     .training_bytes = sums[1],
                     .pass_bytes = sums[2],
                     .held_bytes = sums[3],
                     .border_bytes = sums[4],
                     .peak_live = peak_live(plan, static_cast<int>(stage)),
                     .deferred_bytes = sums[5],
                     .peak_deferred = peak_deferred(plan, static_cast<int>(stage))};
  }
  return stages;
}

}  // namespace strata::engine
