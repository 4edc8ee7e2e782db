// SPDX-License-Identifier: Apache-2.0
// What the planner (planner/) is asked of a run of `strata train`, and what comes of it. Engine
// thread only.
#pragma once
#include <optional>
#include <string>

#include "apps/train/job.h"
#include "planner/staged_plan.h"
#include "planner/train_plan.h"

namespace strata::apps {

// --memory, or none.
std::optional<planner::Budget> budget_of(const std::string& memory);
// Any number where a folder was named, else what apps/setup/engine_setup.h says of it.
planner::FileSpace space_for_files(const std::string& named);

planner::RunShape train_shape(const LoadSpec& spec, const TrainOptions& options,
                              const model::ModelConfig& config, const data::Dataset& train,
                              const data::Dataset& eval);
// Of stages: with the largest micro-batch by their number, from --microbatches on.
planner::RunShape staged_shape(const LoadSpec& spec, const TrainOptions& options,
                               const model::ModelConfig& config, const data::Dataset& train,
                               const data::Dataset& eval);

// In stages, without `memory` as the options have it. Error{kInvalidArgument} where nothing fits.
planner::StagedPlan plan_staged(const LoadSpec& spec, const StageOptions& options,
                                const planner::RunShape& shape, const std::string& memory);
// The same of a run, of which all else was checked.
planner::StagedPlan plan_staged(const LoadSpec& spec, const TrainOptions& options,
                                const data::Dataset& train, const data::Dataset& eval);

// Whether the frozen weights had best lie in a file, before the model is loaded.
bool needs_files(const LoadSpec& spec, const TrainOptions& options, const data::Dataset& train,
                 const data::Dataset& eval);
// What the job's engine is set to.
planner::TrainPlan plan_of(TrainJob& job);
// Sets the engine's tokens of a pass and what it recomputes, by --memory. Without it nothing
// happens.
void fit_memory(TrainJob& job);

}  // namespace strata::apps
