// SPDX-License-Identifier: Apache-2.0
// What the planner (planner/) is asked of a run of `strata train`. Engine thread only.
#pragma once
#include <optional>
#include <string>

#include "apps/train/job.h"
#include "planner/planner.h"

namespace strata::apps {

// --memory, or none.
std::optional<planner::Budget> budget_of(const std::string& memory);
// For activations that --memory has in files: any number of bytes where a folder was named, else
// half of what is left on the disk of temporary files at most; none where that folder will not do.
planner::FileSpace space_for_files(const std::string& named);

planner::RunShape train_shape(const LoadSpec& spec, const TrainSettings& settings,
                              const model::ModelConfig& config, const planner::Division& division,
                              const TrainData& data);

}  // namespace strata::apps
