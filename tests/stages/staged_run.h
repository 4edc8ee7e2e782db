// SPDX-License-Identifier: Apache-2.0
// A small training run of a tiny model, on one engine or divided into stages, and all that must not
// differ between the two: large results, losses, gradients, and what ten optimizer steps make.
#pragma once
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "backend/comm.h"
#include "engine/engine.h"
#include "engine/pipeline/plan.h"
#include "schedule/generate.h"

namespace strata::engine {

// What stages make again: nothing; each layer; a stage as one, from all its layers' inputs or its
// own alone; and a stage's layers from inputs that were made again, beside some activations.
enum class Again : uint8_t { kNothing, kLayers, kStage, kStageOfItsInput, kBoth };

struct StagedCase {
  std::string model = "qwen3";  // a folder of tests/golden; its layers are repeated
  int64_t num_layers = 5;
  bool parameters = false;  // trains all of them; else adapters of two ranks
  DType dtype = DType::kF32;
  // Of the stages.
  int num_ranks = 2;
  int ranks_each = 1;   // of a pipeline, that a process has
  int data = 1;         // ranks of each stage
  int tensor = 1;       // ranks that divide each matrix of one stage
  int expert = 1;       // ranks that divide the experts of one stage
  bool shards = false;  // which divide its weights among themselves
  int num_chunks = 1;
  schedule::Kind kind = schedule::Kind::kGpipe;
  int num_microbatches = 4;
  int forwarding_delay = 1;
  Again again = Again::kNothing;
  bool offloads = false;  // in place of it: some activations and all inputs, others again
  int64_t pass_tokens = EngineOptions().pass_tokens;
  std::vector<int64_t> layers = {};  // of each stage; empty: as even as they divide
  // Of the training.
  bool mtp = false;  // multi-token prediction as well
  bool tied = false;
  bool muon = false;
  double router_bias_rate = 0.0;
  float indexer_weight = 0.0f;  // of indexers' loss
  int64_t vocab_size = 0;       // not 0: in place of the model's
  // Other numbers than its config.json has.
  std::vector<std::pair<const char*, int64_t>> numbers = {};
  int times_as_long = 1;  // sequences
  int num_sequences = 9;  // at most so many
};

void PrintTo(const StagedCase& c, std::ostream* out);

model::ModelConfig staged_config(const StagedCase& c);
PipelinePlan staged_plan(const StagedCase& c);
// Borrowed by the batches of a run.
std::deque<api::Datum> staged_data(int64_t vocab, const StagedCase& c);
EngineOptions staged_options(const StagedCase& c);
// Of this rank's stages.
std::vector<std::unique_ptr<Engine>> staged_engines(const StagedCase& c, Comm& comm,
                                                    const PipelinePlan& plan,
                                                    const EngineOptions& options);
inline std::vector<std::unique_ptr<Engine>> staged_engines(const StagedCase& c, Comm& comm,
                                                           const PipelinePlan& plan) {
  return staged_engines(c, comm, plan, staged_options(c));
}

// B starts at zero, so that nothing flows into A: gives both something, by module and element.
void stir(model::LoraAdapter& adapter);

// By name: "hidden_states", "loss 3", "gradient model.layers.0.mlp.up_proj A", ...
using Outcome = std::map<std::string, std::vector<float>>;

Outcome run_whole(const StagedCase& c);
Outcome run_staged(const StagedCase& c);
// What a pass without a backward gives of all sequences, of the base and of two adapters: on one
// engine, and on each rank.
Outcome score_whole(const StagedCase& c);
std::vector<Outcome> score_staged(const StagedCase& c);

// Every value of `want` and no other, bit by bit.
void expect_same_bits(const Outcome& got, const Outcome& want);

}  // namespace strata::engine
