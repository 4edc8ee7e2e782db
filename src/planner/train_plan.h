// SPDX-License-Identifier: Apache-2.0
// TrainPlan: what training will take and how long a step will last, before the first one: passes,
// the activations that they keep, memory and time; by a policy, or by a number of bytes. Of a model
// that nothing divides. Engine thread only.
#pragma once
#include <cstdint>
#include <vector>

#include "engine/plan/recompute_plan.h"
#include "planner/run_shape.h"

namespace strata::planner {

struct TrainPlan {
  int64_t micro_tokens = 0;  // limit of a pass; one longer sequence is a pass of its own
  engine::PlanShape pass;    // the largest one
  engine::RecomputePlan recompute;
  engine::MemoryPlan memory;
  double num_passes = 0;  // of a step, on average
  engine::Work work;      // of a step
};

// Of a given policy.
TrainPlan plan_train(engine::Engine& engine, const RunShape& shape, int64_t micro_tokens,
                     const model::Recompute& recompute);
// The same of a plan of passes that was chosen.
TrainPlan plan_train(engine::Engine& engine, const RunShape& shape, int64_t micro_tokens,
                     engine::RecomputePlan recompute);

// Of a plan that has all else.
engine::Work work_of_step(engine::Engine& engine, const RunShape& shape, const TrainPlan& plan);

// The plan with the least work that fits --memory, with passes of at most `micro_tokens`.
// Error{kInvalidArgument} when not even the smallest passes fit with all they can in files.
TrainPlan fit_train(engine::Engine& engine, const RunShape& shape, int64_t micro_tokens,
                    const Budget& memory);

// Whether the frozen weights had best lie in a file: the memory holds the run only so, or costs
// less.
bool needs_files(engine::Engine& engine, const RunShape& shape, int64_t micro_tokens,
                 const Budget& memory);

}  // namespace strata::planner
