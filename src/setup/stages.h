// SPDX-License-Identifier: Apache-2.0
// Stages as commands name them: how a model is divided, and the ranks that run it, as threads of
// this process.
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/runner.h"
#include "planner/planner.h"
#include "setup/engine_setup.h"

namespace strata::apps {

// What the options of a command that can divide a model hold of it.
struct StageOptions {
  int stages = 1;  // ranks of a pipeline
  int data = 1;    // pipelines, which deal micro-batches out among themselves
  int tensor = 1;  // ranks that divide each matrix
  int expert = 1;  // ranks that divide the experts
  // How they are divided where they are processes (setup/ranks.h); empty: they are threads.
  std::string ranks = {};
  int ranks_each = 1;          // of a pipeline, that each process has as threads
  std::string bind = "auto";   // those that share a machine's cores divide them; none: as they are
  bool shard_weights = false;  // of data ranks each keeps a part of the weights
  int weight_sharers = 0;      // as PipelinePlan's (setup/weight_group.h)
  int chunks = 0;              // stages of a rank; 0: one, or as many as a file of the schedule has
  std::string schedule = "gpipe";
  int microbatches = 1;
  int forwarding_delay = 1;
  std::string layers_per_stage = "auto";  // or a number for each stage, with commas
  std::string leftovers = "auto";  // before, after: equal stages, and where what is left over goes
  // Regions that --recompute recomputes: a micro-batch's way through a stage, and each layer.
  std::string recompute_iterations = "off";
  std::string recompute_layers = "on";
  bool operator==(const StageOptions&) const = default;
};

// All checks, before anything is loaded. Errors name all numbers.
engine::PipelinePlan plan_stages(const LoadSpec& spec, const StageOptions& options);
// plan_stages(), and what a number of bytes may choose: all is recomputed then, and it has a use
// for the folder of files.
planner::Division plan_division(const model::ModelConfig& config, const StageOptions& options,
                                const engine::RunSpec& spec, bool within_memory = false);

// What a plan for each rank is made of: the parts that the rank with the most of them loads.
LoadSpec with_planned_share(LoadSpec spec, const engine::PipelinePlan& plan);
LoadSpec with_planned_share(LoadSpec spec, const StageOptions& options);

// --memory, or none.
std::optional<planner::Budget> budget_of(const std::string& memory);
// For activations that --memory has in files: any number of bytes where a folder was named, else
// half of what is left on the disk of temporary files at most; none where that folder will not do.
planner::FileSpace measure_space_for_files(const std::string& named);

// Threads of a rank, of so many (0: all cores that the ranks share) that are divided among them.
int threads_of(int rank, int num_ranks, int threads);

// Engines of each part of the division that can plan and cannot run, as the whole one. With `how`
// all parameters train and are stepped so.
std::vector<std::unique_ptr<engine::Engine>> make_part_engines(
    const LoadSpec& spec, engine::Engine& whole, const planner::Division& division,
    const std::optional<train::BaseStep>& how);
// The planner's answer, on such engines. `how`: all parameters are stepped, where they train.
engine::RunPlan plan_staged_run(const LoadSpec& spec, planner::TrainRun run,
                                const train::BaseStep& how = {});

// Loads the stages of this rank, and nothing else, as the plan divides them and has their weights
// in files. Threads are divided among the ranks.
std::unique_ptr<engine::Runner> load_runner(Comm& comm, const engine::RunPlan& run,
                                            const LoadSpec& spec,
                                            engine::EngineOptions options = {});
// Loads the stage of this rank alone, of a plan that has one a rank.
std::unique_ptr<engine::Engine> load_stage_of_rank(const Comm& comm,
                                                   const engine::PipelinePlan& plan,
                                                   const LoadSpec& spec);
// Loads all stages of a plan that has one a rank, each with its part of the threads.
std::vector<std::unique_ptr<engine::Engine>> load_all_stages(const engine::PipelinePlan& plan,
                                                             const LoadSpec& spec,
                                                             engine::EngineOptions options = {});

}  // namespace strata::apps
