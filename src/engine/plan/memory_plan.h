// SPDX-License-Identifier: Apache-2.0
// MemoryPlan: what a run will take, in bytes, before it starts: weights and adapters as they are,
// and passes as they are counted (engine/pass_workspace.h).
#pragma once
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "engine/engine.h"

namespace strata::engine {

struct PassWork;  // engine/pass.h
struct PassState;

// A pass that is planned before there are data, or adapters, to run it with.
struct PlanShape {
  int64_t pass_tokens = 2048;
  // Modules of the adapter in use, which need not exist; none: the base alone.
  std::vector<model::LoraModuleSpec> modules = {};
  int64_t num_adapters = 1;  // of these modules, where the engine has none; gradients in turns
  bool backward = false;
  bool train_base = false;
  bool mtp = false;                                // with multi-token prediction
  bool indexer_loss = false;                       // with the loss that trains indexers
  std::optional<model::Recompute> recompute = {};  // the engine's own unless given
  bool alone = false;  // its tokens are one sequence, as a datum that is longer than a pass runs
  // Its forward and its backward lie apart: what it holds is counted apart, and so is what its
  // backward defers.
  bool in_stages = false;
  bool defers = false;
  int64_t in_flight = 1;    // such passes, each of which holds what it holds
  int64_t sent_tokens = 0;  // of all micro-batches, each at its longest; 0: all as long as a pass
  bool several_rounds = true;  // of ranks that deal passes out among themselves
  // Where ranks divide the experts: each has such a pass of its own at once, or all run this one.
  bool is_dealt = true;
  std::optional<model::RecomputeRegions> regions = {};  // the engine's own unless given
  bool weights_in_files = false;  // though the engine at hand may hold them in memory
  bool state_in_files = false;    // masters and moments, likewise
  int64_t data_bytes = 0;         // that are held besides the passes
  int64_t kv_positions = 0;
  int64_t num_sampled = 0;  // sequences that are sampled, for their states
};

// What memory is for. A run that trains and a server plan by the same list, each the items that it
// has.
enum class MemoryUse : uint8_t {
  kWeights,
  kAdapters,      // with gradients and moments where they train
  kBaseTraining,  // masters, gradients and moments of the base parameters
  kPass,          // what the largest pass works with and keeps
  kPasses,        // those of several stages, or of a server's models
  kSamplingSteps,
  kInFlight,       // micro-batches between their forward and their backward
  kBetweenStages,  // states and gradients that wait to be sent, and channels
  kLists,
  kStep,                // an optimizer step, beyond the pass
  kGradientsInTransit,  // between ranks that deal out passes
  kPositions,           // rope tables
  kKvCache,
  kStates,  // recurrent states of sampled sequences
  kSamplerWeights,
  kRequests,
  kGathered,  // what the first of several ranks collects to save
  kData,
  kProcess,
  kMpi,
};

// The name of a use in tables and JSON, in lower-case words.
std::string_view memory_use_name(MemoryUse use);

struct PlanItem {
  MemoryUse use;
  int64_t bytes = 0;
};

struct MemoryPlan {
  std::vector<PlanItem> items;
  // What is in files, apart from the memory: weights, masters and moments, and activations of the
  // largest pass.
  int64_t file_bytes = 0;
  int64_t state_file_bytes = 0;
  int64_t activation_file_bytes = 0;
  [[nodiscard]] int64_t all_file_bytes() const {
    return file_bytes + state_file_bytes + activation_file_bytes;
  }
  [[nodiscard]] int64_t total() const {
    int64_t sum = 0;
    for (const PlanItem& item : items) sum += item.bytes;
    return sum;
  }
  // The bytes of an item that the plan has; a plan without it is a bug.
  [[nodiscard]] int64_t bytes_of(MemoryUse use) const;
};

// Weights and the adapters that the engine holds now (with none: one of the shape's modules), the
// largest pass of this shape, and the cache.
MemoryPlan plan_memory(Engine& engine, const PlanShape& shape);
// The same where the pass is counted already: its bytes, and those in files.
MemoryPlan plan_memory(Engine& engine, const PlanShape& shape, int64_t pass_bytes,
                       int64_t pass_file_bytes);

// One pass of this shape: its tokens as one sequence, as one for each worker (each of another
// adapter), or each a sequence, whichever takes most; or the first that takes more than `enough`,
// in memory.
PassPlan plan_pass(Engine& engine, const PlanShape& shape, int64_t enough = INT64_MAX);
// One that is there: its forward and its backward in a row, or apart.
PassPlan plan_pass(Engine& engine, const PassWork& work, PassState& state, bool in_stages,
                   bool defers);
// Gradients that are on their way to other ranks, where so many deal passes out: at most the parts
// that a chain of one round has there (engine/pipeline/gradient_chain.h), else all. Nothing was
// accumulated before.
int64_t in_flight_gradient_bytes(Engine& engine, const PlanShape& shape, int num_dealing);
// The rope tables of such a pass.
int64_t rope_table_bytes(const Engine& engine, const PlanShape& shape);
// Bytes of masters and moments, where they are in files and all parameters train; else 0.
int64_t state_file_bytes(Engine& engine, const PlanShape& shape);
// Bytes of sequences that are sampled: their positions' entries, and their states.
int64_t cache_bytes(const Engine& engine, const PlanShape& shape);
// What an optimizer step takes beyond the pass's bytes; 0 where the base does not train.
int64_t step_bytes_beyond_pass(Engine& engine, const PlanShape& shape, int64_t pass_bytes);
// What libraries, thread stacks and small lists of a process write to: measured, the same for every
// model (4.2 MiB at most, while a run is saved). The program's text is mapped from its file and no
// memory of its own.
constexpr int64_t kProcessBytes = 5 << 20;
// And what MPI takes of its own in a process that is one of several: measured (2.7 MiB of Open MPI
// 4.1, of 1 to 8 ranks over shared memory and TCP).
constexpr int64_t kMpiBytes = 3 << 20;

}  // namespace strata::engine
