// A small training run of a tiny model, on one engine or divided into stages, and all that must not
// differ between the two: large results, losses, gradients, and what ten optimizer steps make.
#pragma once
#include <cstdint>
#include <map>
#include <ostream>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "engine/pipeline/plan.h"
#include "schedule/generate.h"

namespace strata::engine {

struct StagedCase {
  std::string model = "qwen3";  // a folder of tests/golden; its layers are repeated
  int64_t num_layers = 5;
  bool parameters = false;  // trains all of them; else adapters of two ranks
  DType dtype = DType::kF32;
  // Of the stages.
  int num_ranks = 2;
  int num_chunks = 1;
  schedule::Kind kind = schedule::Kind::kGpipe;
  int num_microbatches = 4;
  int forwarding_delay = 1;
  bool recompute = false;
  std::vector<int64_t> layers = {};  // of each stage; empty: as even as they divide
};

void PrintTo(const StagedCase& c, std::ostream* out);

model::ModelConfig staged_config(const StagedCase& c);
PipelinePlan staged_plan(const StagedCase& c);

// By name: "hidden_states", "loss 3", "gradient model.layers.0.mlp.up_proj A", ...
using Outcome = std::map<std::string, std::vector<float>>;

Outcome run_whole(const StagedCase& c);
Outcome run_staged(const StagedCase& c);

// Every value of `want` and no other, bit by bit.
void expect_same_bits(const Outcome& got, const Outcome& want);

}  // namespace strata::engine
