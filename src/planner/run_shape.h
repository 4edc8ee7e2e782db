// SPDX-License-Identifier: Apache-2.0
// RunShape: what is trained, as far as memory and time depend on it: of a run of `strata train`, or
// of one that is only planned. Plain values. Any thread.
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/pipeline/plan.h"
#include "engine/plan/cost.h"
#include "engine/plan/memory_plan.h"
#include "schedule/generate.h"

namespace strata::planner {

// How a model is divided, and what of it a plan may choose.
struct Division {
  engine::PipelinePlan told = {};  // as it was asked for; without a stage nothing divides it
  std::string schedule = {};       // by its name
  // It in other numbers of micro-batches; a file's schedule has one.
  std::optional<schedule::Spec> spec = {};
  std::vector<model::RecomputeRegions> regions = {};  // where a number of bytes decides
  int num_processes = 1;                              // that the ranks are

  // Neither into stages nor into micro-batches: steps are cut into passes.
  [[nodiscard]] bool is_whole() const { return told.layers.empty() || told.is_whole(); }
  // The layers of the stages that a plan counts apart.
  [[nodiscard]] std::vector<model::LayerRange> parts() const {
    return is_whole() ? std::vector<model::LayerRange>() : told.layers;
  }
};

// Bytes that a run may take.
struct Budget {
  int64_t bytes = 0;
  std::string text = {};  // as it was asked for
};

// The most tokens of a pass at a limit of so many.
struct LongestPass {
  int64_t limit = 0;
  int64_t trained = 0;
  int64_t evaluated = 0;
  bool several_rounds = false;  // of ranks that deal passes out, some step takes
  // The tokens of each micro-batch, where stages are limited by their number.
  std::vector<int64_t> of_microbatches = {};
};

// The space for activations that --memory has in files wherever that costs less.
struct FileSpace {
  int64_t most = 0;            // on the disk
  int64_t memory = INT64_MAX;  // of which the system keeps files, besides what is planned
  [[nodiscard]] bool holds(int64_t file_bytes, int64_t planned) const;
};

// What is trained, as far as memory and time depend on it.
struct RunShape {
  engine::PlanShape pass = {};        // of any pass, but its tokens
  int64_t micro_tokens = 2048;        // of a pass, at most; a longer sequence is one of its own
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

// What is known of passes at a limit of so many tokens; null: nothing.
const LongestPass* find_longest(const RunShape& shape, int64_t micro_tokens);
// The tokens of a pass that trains, at a limit of so many.
int64_t pass_tokens(const RunShape& shape, int64_t micro_tokens);
// That pass.
engine::PlanShape training_pass_shape(const RunShape& shape, int64_t micro_tokens);
// A step of passes, each of sequences of so many tokens that run one after the other: cut at every
// limit of a pass that may be tried, or where a division has them into every number of
// micro-batches.
void add_step_to_longest_passes(RunShape& shape, const Division& division,
                                const std::vector<std::vector<int64_t>>& passes);
// Adds the passes of an evaluation: sequences in their order.
void add_evaluation_to_longest_passes(RunShape& shape, const Division& division,
                                      std::span<const int64_t> lengths);

// Limits of a pass that are worth trying: the shape's, and halves of it.
std::vector<int64_t> pass_limits_to_try(const RunShape& shape);

}  // namespace strata::planner
