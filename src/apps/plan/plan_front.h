// SPDX-License-Identifier: Apache-2.0
// What `strata plan --svg` draws: time of a step over memory, for all budgets, all presets and the
// plan that was made.
#pragma once
#include <cstdint>
#include <string>

#include "planner/train_plan.h"

namespace strata::apps {

struct PlannedRun {
  engine::Engine& engine;
  const planner::RunShape& shape;
  int64_t micro_tokens = 0;
  const engine::MachineLimits& limits;
};

void draw_front(const std::string& path, const PlannedRun& run, const planner::TrainPlan& plan);

}  // namespace strata::apps
