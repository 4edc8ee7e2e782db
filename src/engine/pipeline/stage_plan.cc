#include "engine/pipeline/stage_plan.h"

#include <algorithm>

namespace strata::engine {
namespace {

using schedule::Op;

// In flight until what it computed has gone, which is an action of its own where the stage before
// is on another rank.
bool ends_flight(const PipelinePlan& plan, const schedule::Action& action) {
  const auto stage = static_cast<size_t>(action.stage);
  if (action.op == Op::kSendBackward) return true;
  return action.op == Op::kBackward && (stage == 0 || plan.ranks[stage - 1] == plan.ranks[stage]);
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
  const int rank = plan.ranks[static_cast<size_t>(stage)];
  for (const schedule::Slot& slot : plan.table.rows[static_cast<size_t>(rank)]) {
    for (const schedule::Action& action : slot.actions()) {
      if (action.stage != stage) continue;
      if (action.op == Op::kForward) most = std::max(most, ++live);
      if (ends_flight(plan, action)) --live;
    }
  }
  return most;
}

std::vector<StagePlan> plan_stages(Pipeline& pipeline, const PlanShape& shape) {
  const PipelinePlan& plan = pipeline.plan();
  constexpr size_t kValues = 3;
  // Bytes are exact in double; each stage has its own place, and the others' hold zeroes.
  std::vector<double> own(kValues * plan.layers.size()), all;
  for (const auto& runner : pipeline.stages()) {
    Engine& engine = runner->engine();
    double* values = own.data() + kValues * static_cast<size_t>(runner->stage());
    values[0] = static_cast<double>(engine.model().weights->num_bytes());
    values[1] = static_cast<double>(training_bytes(engine, shape));
    values[2] = static_cast<double>(plan_pass_bytes(engine, shape));
  }
  pipeline.comm().all_gather(own, all);
  std::vector<StagePlan> stages(plan.layers.size());
  for (size_t stage = 0; stage < stages.size(); ++stage) {
    double sums[kValues] = {};
    for (size_t at = kValues * stage; at < all.size(); at += own.size()) {
      for (size_t i = 0; i < kValues; ++i) sums[i] += all[at + i];
    }
    stages[stage] = {.weight_bytes = static_cast<int64_t>(sums[0]),
                     .training_bytes = static_cast<int64_t>(sums[1]),
                     .pass_bytes = static_cast<int64_t>(sums[2]),
                     .peak_live = peak_live(plan, static_cast<int>(stage))};
  }
  return stages;
}

}  // namespace strata::engine
