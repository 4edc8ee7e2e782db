// SPDX-License-Identifier: Apache-2.0
// What a step, a prompt or a token costs: floating-point operations, bytes that move, and the time
// that a machine takes for them. Counted from the rows of blocks and connectors alone, and read by
// whoever plans, predicts or quotes a speed. T tokens, S sequence length, L layers.
#pragma once
#include <span>
#include <string>
#include <vector>

#include "model/adapter/io.h"

namespace strata::engine {

struct RecomputePlan;

struct Work {
  double flops = 0.0;
  double f32_flops = 0.0;     // of them, what is in f32 whatever the dtype: rules, streams
  double exponentials = 0.0;  // of attention, forward and backward, and of a choice, besides them
  double bytes = 0.0;         // of memory, read or written
  double cache_bytes = 0.0;   // of them, keys and values that decoding reads
  double file_bytes = 0.0;    // written to files and read from them
};
inline Work operator+(const Work& a, const Work& b) {
  return {.flops = a.flops + b.flops,
          .f32_flops = a.f32_flops + b.f32_flops,
          .exponentials = a.exponentials + b.exponentials,
          .bytes = a.bytes + b.bytes,
          .cache_bytes = a.cache_bytes + b.cache_bytes,
          .file_bytes = a.file_bytes + b.file_bytes};
}
inline Work operator*(double times, const Work& work) {
  return {.flops = times * work.flops,
          .f32_flops = times * work.f32_flops,
          .exponentials = times * work.exponentials,
          .bytes = times * work.bytes,
          .cache_bytes = times * work.cache_bytes,
          .file_bytes = times * work.file_bytes};
}

// What each of so many tensor ranks does of work whose products they divide. What moves through
// memory stays, since it was counted of a rank's own weights and activations.
inline Work divide_products(Work work, int num_ranks) {
  work.flops /= num_ranks;
  work.f32_flops /= num_ranks;
  work.exponentials /= num_ranks;
  return work;
}

// What a machine does in a second. The numbers here are those of an ordinary one, which plans weigh
// work by, so that a plan does not depend on the minute it was made in (docs/dev/log).
struct MachineLimits {
  double flops = 400e9;  // of the dtype's products
  double f32_flops = 200e9;
  double bytes = 20e9;
  // Bytes a second of a disk, as if nothing were computed meanwhile.
  double file_bytes = 1e9;
  std::string source = "assumed";
};

// The time of passes of many rows, whose products and what goes through memory between them take
// turns.
double seconds_of(const Work& work, const MachineLimits& limits);
// The time of decoding, whose products compute while they read weights.
double decode_seconds(const Work& work, const MachineLimits& limits);

// What a byte costs besides a floating-point operation: of a machine as above, in whole numbers.
struct Price {
  double byte = 20.0;
  double file_byte = 400.0;
  // In operations.
  [[nodiscard]] double of(const Work& work) const {
    return work.flops + byte * work.bytes + file_byte * work.file_bytes;
  }
};
Price price_of(const MachineLimits& limits);

constexpr double kWeightReads = 3.0;  // by a pass with its backward
constexpr double kFileReads = 2.0;    // of weights in files, likewise: forward and backward
constexpr double kFileMoves = 2.0;    // of an offloaded activation: written once, read once
constexpr double kStateMoves = 2.0;   // of masters and moments in files: by a step
constexpr double kAgainMoves = 2.0;   // of an activation that is recomputed

// Matrices of all layers that one token uses; of experts the chosen ones. With a batch: that so
// many tokens read, if no two chose the same expert.
int64_t num_layer_weights(const model::ModelConfig& config, int64_t batch = 1);
// How many of those that one token uses are of the experts that it chooses.
int64_t num_expert_weights(const model::ModelConfig& config);
// Weights of an adapter of these modules that one token uses.
int64_t num_lora_weights(const model::ModelConfig& config,
                         std::span<const model::LoraModuleSpec> modules);
// Latent attention: work of scores and values in latent space over that of expanded heads. Else 1.
double absorbed_attention_ratio(const model::ModelConfig& config);

// An optimizer step over sequences of these lengths.
struct StepShape {
  std::span<const int64_t> lengths;
  // The modules of the adapter that trains; without any every parameter does.
  std::span<const model::LoraModuleSpec> modules = {};
  bool indexer_loss = false;  // the loss that trains indexers, where there are any
  double scored = 1.0;        // share of the tokens that have a weight, whose logits are made
};
// Forward and backward to what trains; nothing is recomputed.
double step_flops(const model::ModelConfig& config, const StepShape& shape);
// The work of the layers' forward, which full recompute makes once more.
double forward_flops(const model::ModelConfig& config, const StepShape& shape);

// The passes that a step is cut into.
struct StepPasses {
  double tokens = 0.0;  // of a step, on average
  double number = 1.0;
  int64_t pass_tokens = 1;  // of the one that `kept` is of
  bool weights_in_files = false;
};
// The work of a step of that shape, whose passes keep so much.
Work step_work(const model::ModelWeights& weights, const StepShape& shape, const StepPasses& passes,
               const RecomputePlan& kept);

// Logits of the last position only.
Work prefill_work(const model::ModelConfig& config, int64_t length);

// One token of each of `batch` sequences, each with `context` positions in its own cache; dtype of
// weights and cache.
struct DecodeShape {
  int64_t batch = 1;
  int64_t context = 0;
  DType dtype = DType::kBF16;
  // Different adapters of these modules, which are read once each.
  int64_t num_adapters = 0;
  std::span<const model::LoraModuleSpec> modules = {};
  double weight_bytes = 0.0;  // of a weight of the model, where those are not of the dtype
};
Work decode_work(const model::ModelConfig& config, const DecodeShape& shape);

// Forward and backward of each layer on a sequence of a usual length, and of what comes after them:
// the head and, where it takes part, multi-token prediction.
struct LayerCosts {
  std::vector<double> layers;
  double head = 0.0;
};
LayerCosts layer_costs(const model::ModelConfig& config);

}  // namespace strata::engine
