// SPDX-License-Identifier: Apache-2.0
// plan_run (planner/planner.h) of a model in stages, or in several micro-batches.
#pragma once
#include "planner/planner.h"

namespace strata::planner {

engine::RunPlan plan_staged(const TrainRun& run);

}  // namespace strata::planner
