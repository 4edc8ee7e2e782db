// SPDX-License-Identifier: Apache-2.0
// StagedPlan: what training in stages will take and how long a step will last, before the first
// one, counted on engines of the stages that can only plan. With --memory it says how many
// micro-batches there are, what each stage keeps and whether the frozen weights lie in files: the
// bytes of all ranks together stay within it, since the ranks share a process. Any thread.
#pragma once
#include <string>

#include "apps/train/plan.h"
#include "engine/pipeline/stage_fit.h"
#include "report/table.h"

namespace strata::apps {

struct StagedPlan {
  engine::PipelinePlan stages;  // as it runs
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

// Of a run of `strata train`: with the largest micro-batch by their number, from --microbatches on.
RunShape staged_shape(const LoadSpec& spec, const TrainOptions& options, const model::ModelConfig& config,
                      const data::Dataset& train, const data::Dataset& eval);
// Batches of so many sequences as there are lengths, cut into each number that may be tried for
// each of so many ranks that deal them out.
void add_micro_batches(RunShape& shape, const std::vector<int64_t>& lengths, bool trained,
                       int microbatches, int data = 1);

// `memory` empty: as the options have it. Error{kInvalidArgument} where nothing fits.
StagedPlan plan_staged(const LoadSpec& spec, const StageOptions& options, const RunShape& shape,
                       const std::string& memory);
// The same of a run, of which all else was checked.
StagedPlan plan_staged(const LoadSpec& spec, const TrainOptions& options,
                       const data::Dataset& train, const data::Dataset& eval);

// Rows of the printed plan: stages, memory, files, time. `limits` of all ranks' threads together.
void add_rows(const StagedPlan& plan, const StageOptions& options, const MachineLimits& limits,
              const std::string& folder, report::Table& table);
// A table of what each stage takes.
std::string stages_table(const StagedPlan& plan);
double step_seconds(const StagedPlan& plan, const MachineLimits& limits);

}  // namespace strata::apps
