// SPDX-License-Identifier: Apache-2.0
// StagedPlan: what training in stages will take and how long a step will last, before the first
// one, counted on engines of the stages that can only plan. With a number of bytes it says how many
// micro-batches there are, what each stage keeps and whether the frozen weights lie in files: the
// bytes of all ranks together stay within it, since the ranks share a process. Any thread.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "engine/pipeline/stage_fit.h"
#include "planner/run_shape.h"
#include "schedule/generate.h"

namespace strata::planner {

// How a model is divided, and what of it a plan may choose.
struct Division {
  engine::PipelinePlan told;  // as it was asked for
  std::string schedule;       // by its name
  // It in other numbers of micro-batches; a file's schedule has one.
  std::optional<schedule::Spec> spec = {};
  std::vector<model::RecomputeRegions> regions = {};  // where a number of bytes decides
  int num_processes = 1;                              // that the ranks are
};

struct StagedPlan {
  engine::PipelinePlan stages;  // as it runs
  std::string schedule;         // by its name
  engine::StagesChoice choice;
  engine::MemoryPlan memory;  // of all ranks
  int64_t pass_tokens = 0;    // of the largest micro-batch
  bool weights_in_files = false;
  std::vector<engine::Work> work;  // of a step, on each rank
  double bubbles = 0.0;            // share of the ranks' time
  // A step over what it would be with its work spread evenly over all ranks, without bubbles and
  // without recomputing.
  double stretch = 1.0;
};

// A run in stages, on engines of the whole model and of each stage.
struct StagedRun {
  engine::Engine& whole;
  std::vector<engine::Engine*> stages;
  const Division& division;
  const RunShape& shape;
  const model::Recompute& recompute;  // as it was asked for
};

// Without `memory` as the division has it. Error{kInvalidArgument} where nothing fits.
StagedPlan plan_staged(const StagedRun& run, const std::optional<Budget>& memory);
double step_seconds(const StagedPlan& plan, const engine::MachineLimits& limits);

}  // namespace strata::planner
