// SPDX-License-Identifier: Apache-2.0
// What `strata plan --svg` draws: time of a step over memory, for all budgets, all presets and the
// plan that was made.
#pragma once
#include <string>

#include "planner/planner.h"

namespace strata::apps {

// `plan`: the answer to `run`, in front of others with the limits.
void write_pareto_chart(const std::string& path, planner::TrainRun run,
                        const engine::MachineLimits& limits, const engine::RunPlan& plan);

}  // namespace strata::apps
