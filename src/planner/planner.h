// SPDX-License-Identifier: Apache-2.0
// The planner: what a run will take and how long a step will last, before the first one, as a
// RunPlan (engine/plan/run_plan.h), for whatever a command does. It counts on engines that may be
// ones that can only plan. With a number of bytes it says how long passes are or how many
// micro-batches there are, what is kept of their activations and whether the frozen weights lie in
// files: all ranks together stay within it, since they share a process. Any one thread.
#pragma once
#include <optional>
#include <vector>

#include "engine/plan/run_plan.h"
#include "planner/run_shape.h"

namespace strata::planner {

// A run that trains.
struct TrainRun {
  engine::Engine& whole;
  std::vector<engine::Engine*> stages = {};  // of the division's parts
  Division division = {};
  RunShape shape = {};
  model::Recompute recompute = {};  // as it was asked for, without `memory`
  std::optional<Budget> memory = {};
  bool is_loaded = false;  // the frozen weights stay where they are
};

// As the run has it, or the one with the least time within its memory. Error{kInvalidArgument}
// where nothing fits.
engine::RunPlan plan_run(const TrainRun& run);
// Plans a run that nothing divides, in passes of at most so many tokens that keep what was chosen.
engine::RunPlan plan_run(const TrainRun& run, int64_t micro_tokens,
                         engine::RecomputePlan recompute);

// Plans passes of a model that nothing divides, in which there is no step. Without a time.
engine::RunPlan plan_run(engine::Engine& engine, const engine::PlanShape& pass);
// What a stage takes for a pass that is there, and counted; or a model that nothing divides.
engine::StagePlan plan_stage(const engine::PipelinePlan& pipeline, int stage,
                             engine::Engine& engine, const engine::PlanShape& shape,
                             const engine::PassPlan& counted);

// A model that is served: its stages, and how they divide it; without a plan one, which is whole.
// Where other processes have the rest, each plans its own memory.
struct ServedModel {
  std::vector<engine::Engine*> stages;
  const engine::PipelinePlan* plan = nullptr;
  int first_stage = 0;  // of these, in the plan
  int num_dealing = 1;  // ranks that deal passes out among themselves, where there is no plan
};

// A server's models, and what may be asked of them.
struct ServeRun {
  std::vector<ServedModel> models;
  int64_t memory = 0;
  int64_t max_rank = 0;
  int64_t max_sample_rows = 0;
  std::vector<engine::PlanRow> requests = {};
  model::ExpertRank expert_rank = model::ExpertRank::kDivided;
};

// Error{kResourceExhausted} when not even one adapter of rank 8 and one sample of 2,048 positions
// fit: what is needed, what there is, and what to change.
engine::RunPlan plan_run(const ServeRun& run);
// That Error.
[[noreturn]] void refuse_memory(int64_t needed, int64_t budget);

}  // namespace strata::planner
