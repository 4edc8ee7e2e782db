// SPDX-License-Identifier: Apache-2.0
// What `strata plan train` is asked: a model's spec, a step's shape, and the machine. Each throws
// Error where options do not go together, as `strata train` refuses them. Any thread.
#pragma once
#include <string>

#include "apps/plan/plan.h"
#include "engine/engine.h"
#include "planner/planner.h"
#include "setup/load_spec.h"
#include "setup/stages.h"

namespace strata::apps {

// An Error of a plan's options.
[[noreturn]] void refuse_plan(const std::string& what);

LoadSpec read_training_spec(const PlanOptions& options);
// The shape of the step that the options say, or of a usual one, on the ranks or stages of a
// division.
planner::RunShape make_run_shape(const PlanOptions& options, const engine::Engine& engine,
                                 const planner::Division& division = {});
void check_indexer_loss(const PlanOptions& options, const engine::Engine& engine);
train::BaseStep step_of(const PlanOptions& options);
// Some numbers are options of schedules too.
StageOptions stage_options_of(const PlanOptions& options);
engine::MachineLimits resolve_machine(const PlanOptions& options, engine::Engine& engine);

}  // namespace strata::apps
