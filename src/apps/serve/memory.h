// SPDX-License-Identifier: Apache-2.0
// What the planner (planner/planner.h) is told of a server's memory.
#pragma once
#include <span>
#include <string>
#include <vector>

#include "model/weights/load.h"
#include "planner/planner.h"
#include "server/tinker/budget.h"

namespace strata::apps {

// What requests may make a server hold, as rows of a plan.
std::vector<engine::PlanRow> request_rows(const server::Budget& budget);

// Before anything is loaded: the checkpoints' files against the budget. A folder may have others,
// such as the same weights in one consolidated.safetensors.
void check_weights_fit(std::span<const std::string> directories, int64_t budget,
                       model::KeepWeights keep = model::KeepWeights::kBf16);

}  // namespace strata::apps
