// SPDX-License-Identifier: Apache-2.0
// What the ranks that have parts of a stage's weights send each other for a step's passes, counted
// by running each pass on a backend that only counts. Engine thread only.
#pragma once
#include <vector>

#include "engine/pipeline/sent_plan.h"
#include "engine/plan/run_plan.h"
#include "planner/run_shape.h"
#include "setup/stages.h"

namespace strata::apps {

struct StageMessages {
  std::vector<engine::SentBytes> sent;  // by their numbers among all ranks
  engine::StageWaits waits;             // how often they wait for each other
};

// Counts them for each stage of a step that was planned so; none where no ranks have parts of a
// stage's weights.
// `how`: all parameters are stepped, where they train.
std::vector<StageMessages> plan_stage_messages(const LoadSpec& spec,
                                               const planner::Division& division,
                                               const engine::RunPlan& plan,
                                               const planner::RunShape& shape,
                                               const train::BaseStep& how);

}  // namespace strata::apps
