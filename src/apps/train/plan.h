// SPDX-License-Identifier: Apache-2.0
// TrainPlan: what training will take and how long a step will last, before the first one: passes,
// the activations that they keep, memory and time; by a policy, or by a number of bytes. Of a run
// of `strata train`, or of one that is only planned (`strata plan`). Engine thread only.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "apps/setup/step_time.h"
#include "apps/train/job.h"
#include "engine/plan/recompute_plan.h"

namespace strata::apps {

// The most tokens of a pass at a limit of so many.
struct LongestPass {
  int64_t limit = 0;
  int64_t trained = 0;
  int64_t evaluated = 0;
  // Of stages, where the limit is a number of micro-batches: of each one.
  std::vector<int64_t> of_microbatches = {};
};

// Of activations that --memory has in files wherever that costs less.
struct FileSpace {
  int64_t most = 0;            // on the disk
  int64_t memory = INT64_MAX;  // of which the system keeps files, besides what is planned
  [[nodiscard]] bool holds(int64_t file_bytes, int64_t planned) const;
};
// Any number where a folder was named, else what apps/setup/engine_setup.h says of it.
FileSpace space_for_files(const std::string& named);

// What is trained, as far as memory and time depend on it.
struct RunShape {
  engine::PlanShape pass = {};        // of any pass, but its tokens
  std::vector<int64_t> lengths = {};  // of the sequences, in tokens
  int64_t longest = 0;                // of these and of what evaluates
  int64_t step_tokens = 0;            // of an optimizer step, on average
  int64_t largest_step = 0;           // tokens of the largest one, where the batches are known
  // By limit, where the batches are known; else passes may be as long as their limit.
  std::vector<LongestPass> longest_passes = {};
  // Bytes of activations that may lie in files wherever that costs less; where nothing else fits,
  // any number.
  FileSpace file_space = {};
  engine::Price price = {};  // that plans weigh work by
};

constexpr int64_t kLeastPassTokens = 256;  // shorter passes are bound by memory

struct TrainPlan {
  int64_t micro_tokens = 0;  // limit of a pass; one longer sequence is a pass of its own
  engine::PlanShape pass;    // the largest one
  engine::RecomputePlan recompute;
  engine::MemoryPlan memory;
  double num_passes = 0;  // of a step, on average
  engine::Work work;      // of a step
};

// The tokens of a pass that trains, at a limit of so many.
int64_t pass_tokens(const RunShape& shape, int64_t micro_tokens);
// Lengths of sequences that run one after the other, cut at every limit that may be tried.
void add_passes(RunShape& shape, std::span<const int64_t> lengths, bool trained,
                int64_t micro_tokens);

// Of a given policy.
TrainPlan plan_train(engine::Engine& engine, const RunShape& shape, int64_t micro_tokens,
                     const model::Recompute& recompute);
// The same of a plan of passes that was chosen.
TrainPlan plan_train(engine::Engine& engine, const RunShape& shape, int64_t micro_tokens,
                     engine::RecomputePlan recompute);

// Of a plan that has all else.
engine::Work work_of_step(engine::Engine& engine, const RunShape& shape, const TrainPlan& plan);

// Limits of a pass that are worth trying: the given one, and halves of it.
std::vector<int64_t> pass_limits(const RunShape& shape, int64_t micro_tokens);

// The plan with the least work that fits --memory, with passes of at most `micro_tokens`.
// Error{kInvalidArgument} when not even the smallest passes fit with all they can in files.
TrainPlan fit_train(engine::Engine& engine, const RunShape& shape, int64_t micro_tokens,
                    const std::string& memory);

// Of a run of `strata train`.
RunShape train_shape(const LoadSpec& spec, const TrainOptions& options, const model::ModelConfig& config,
                     const data::Dataset& train, const data::Dataset& eval);

// Whether the frozen weights had best lie in a file: the memory holds the run only so, or costs
// less.
bool needs_files(engine::Engine& engine, const RunShape& shape, int64_t micro_tokens,
                 const std::string& memory);
// The same of a run of `strata train`, before the model is loaded.
bool needs_files(const LoadSpec& spec, const TrainOptions& options, const data::Dataset& train,
                 const data::Dataset& eval);

// What the job's engine is set to.
TrainPlan plan_of(TrainJob& job);
// Sets the engine's tokens of a pass and what it recomputes, by --memory. Without it nothing
// happens.
void fit_memory(TrainJob& job);

// "1.9 GiB: weights 1.11 GiB, ..."
std::string memory_text(const engine::MemoryPlan& plan);
// "4.1 s, predicted from ..."
std::string time_text(const TrainPlan& plan, const MachineLimits& limits);
// What is in files there, and how often it moves; empty where nothing does.
std::string file_text(const TrainPlan& plan, const std::string& folder);
// A table of the activations of a pass: what is kept of each and what the rest costs.
std::string activations_text(const TrainPlan& plan);

}  // namespace strata::apps
