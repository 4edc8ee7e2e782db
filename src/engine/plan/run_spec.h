// SPDX-License-Identifier: Apache-2.0
// RunSpec: what a command was asked to run a model as, in values: read once of options and
// config.json, and nobody writes to it afterwards. A plan, and what runs, are made from it.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "engine/plan/cost.h"
#include "model/pass/recompute.h"
#include "model/weights/load.h"

namespace strata::engine {

// What becomes of a training pass's activations, where no number of bytes decides it.
struct RecomputeChoice {
  std::string name = "none";  // as it was asked for
  model::Recompute policy = model::Recompute::kNone;
  std::vector<std::string> tags = {};  // that it names one by one
  // Whether layers' inputs are kept, where a stage is recomputed as one.
  bool keeps_layer_inputs = true;

  [[nodiscard]] bool keeps_all() const { return name == "none"; }
};

struct RunSpec {
  model::ParsedConfig parsed;  // as its config.json has it, and the run's tables of RoPE
  DType dtype = DType::kF32;   // that is computed in
  model::KeepWeights weights = model::KeepWeights::kAuto;
  bool load_in_4bit = false;  // its linear layers are quantised to nf4
  model::UseMtp mtp = model::UseMtp::kNever;
  RecomputeChoice recompute = {};
  std::string offload = {};        // folder of what is in files; empty: that of temporary files
  model::WeightShare share = {};   // of ranks that divide the weights
  model::TensorShare tensor = {};  // of ranks that divide each matrix
  model::ExpertShare expert = {};  // of ranks that divide the experts
  int weight_sharers = 1;          // processes of the machine that have them together
  int threads = 0;                 // 0: all cores
  // The machine's limits, where they were given: what plans weigh work by and predict times with.
  std::optional<MachineLimits> limits = {};
};

}  // namespace strata::engine
