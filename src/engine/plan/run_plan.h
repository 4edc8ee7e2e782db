// SPDX-License-Identifier: Apache-2.0
// RunPlan: what a run will be and take, before there is one, whatever it does: how the model is
// divided, the passes or micro-batches of a step and what they keep, bytes by what they are, work
// and time; of a server also how it shares its memory. Made by the planner (planner/planner.h) for
// every command alike. Plain values.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "engine/pipeline/stage_plan.h"
#include "engine/plan/recompute_plan.h"

namespace strata::engine {

struct PlanRow {
  std::string name;
  int64_t bytes = 0;
};

// How a server shares its memory: what is there whatever is asked of it is taken as it is, and
// what is left goes to the KV cache, adapters and sampler weights, each of which takes its part
// only as it is used. Bytes of these are the plan's items.
struct ServerShares {
  int64_t budget = 0;
  int64_t narrow = 0;  // of the models' files, what is stored in few bits and dequantised
  bool keeps = false;  // some of the weights in few bits
  std::vector<PlanRow> requests = {};  // what they may make the server hold, by what it is
  // Sizes of the first model, for people.
  int64_t slot_rank_8 = 0, slot_rank_32 = 0, slot_max_rank = 0, max_rank = 0;
  int64_t token_bytes = 0;   // activations of a training pass, each token
  int64_t sample_bytes = 0;  // KV of 2,048 positions, and a state
  // A number for each model.
  // Tokens that fit a pass alone, with full recompute, its layers' inputs in a file where the
  // engine may offload; and what such a pass takes of the file.
  std::vector<int64_t> longest_data = {};
  std::vector<int64_t> file_bytes = {};
  std::vector<int64_t> max_pages = {};
  std::vector<int64_t> max_states = {};
  std::vector<int64_t> pass_bytes = {};  // of each stage of each
};

struct RunPlan {
  PipelinePlan pipeline = {};  // as it runs; one stage and one micro-batch where nothing divides it
  std::string schedule = {};   // by its name
  std::vector<StagePlan> stages = {};  // what each takes
  int64_t micro_tokens = 0;            // limit of a pass; one longer sequence is a pass of its own
  PlanShape pass = {};                 // the largest one
  RecomputePlan recompute = {};        // of stages what is kept alone
  bool weights_in_files = false;       // the frozen weights are
  bool state_in_files = false;         // masters and moments are
  MemoryPlan memory = {};              // of all ranks together
  double num_passes = 0;               // of a step, on average
  std::vector<Work> work = {};         // of a step, on each rank
  double bubbles = 0.0;                // share of the ranks' time
  // A step over what it would be with its work spread evenly over all ranks, without bubbles and
  // without recomputing.
  double stretch = 1.0;
  ServerShares server = {};  // where one is planned

  // What of `memory` each rank of the pipeline takes; of several data ranks each that.
  [[nodiscard]] std::vector<int64_t> bytes_of_ranks() const;
};

// How long an optimizer step takes, at limits of all ranks' threads together.
double step_seconds(const RunPlan& plan, const MachineLimits& limits);

}  // namespace strata::engine
