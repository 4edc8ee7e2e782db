// SPDX-License-Identifier: Apache-2.0
// The division of a model among so many ranks of a cluster with which a step of training takes the
// least time: pipelines and data ranks, schedules, micro-batches and chunks are planned and
// simulated (setup/simulated_step.h), those left out of which a bound says that they are slower
// than what was found. The same input finds the same. Nothing of the model runs.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/function_ref.h"
#include "setup/cluster_file.h"
#include "setup/stages.h"

namespace strata::apps {

// What is searched through: every divisor of the ranks as the length of a pipeline, with as many
// data ranks as that leaves; of a pipeline every schedule that has a name, with each of the chunks,
// and micro-batches that are powers of two or such multiples of the ranks of a pipeline, up to one
// for each sequence of a data rank. A model without a pipeline is cut into passes. Where none of
// these has the memory, expert ranks and tensor ranks are tried, of every number that divides the
// model: each holds less of a stage's weights, and they wait for each other.
struct DivisionSearch {
  using ShapeOf = FunctionRef<planner::RunShape(const engine::Engine& whole,
                                                const planner::Division& division)>;
  using Report = FunctionRef<void(int64_t done, int64_t total)>;

  const LoadSpec& spec;
  const Cluster& cluster;
  int num_ranks = 1;
  std::optional<train::BaseStep> how = {};  // where all parameters train
  // What is recomputed is tried in this order until a rank has the memory: names of --recompute, by
  // rising work.
  std::vector<std::string> recompute = {"none", "full"};
  bool tries_chunks = true;  // also several stages a rank
};

// A division as the options name it, and its step on the cluster.
struct FoundDivision {
  StageOptions stages;  // of --ranks, --pipeline-schedule, --microbatches and --chunks
  std::string recompute;
  double seconds = 0.0;
  double bubble_share = 0.0;
  int64_t peak_bytes = 0;  // of the rank that takes most
};

struct FoundDivisions {
  std::vector<FoundDivision> best = {};  // the fastest first, kMostFound of them at most
  int64_t num_simulated = 0, num_too_large = 0, num_ruled_out = 0;
  int64_t least_bytes = 0;  // of those that are too large, the least that a rank would need
};
constexpr size_t kMostFound = 10;

// `shape_of` says what a step is in a division. Error for a model that nothing divides so.
FoundDivisions search_divisions(const DivisionSearch& search, DivisionSearch::ShapeOf shape_of,
                                DivisionSearch::Report report);

// Error where no division was found, with what is missing.
void check_found(const FoundDivisions& found, const DivisionSearch& search);

// "--ranks pipeline=2,data=2 --pipeline-schedule 1f1b --microbatches 8": the options that ask for
// it.
std::string division_options_text(const FoundDivision& division);

// An Error that names `chooser`, an option, for each option that says how a model is divided.
void check_division_is_open(const StageOptions& given, const std::string& chooser);

}  // namespace strata::apps
