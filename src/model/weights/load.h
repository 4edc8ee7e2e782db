// SPDX-License-Identifier: Apache-2.0
// From a Hugging Face directory to weights. Strict: every parameter of the table is filled
// exactly once, every tensor of the checkpoint is used or on the family's written ignore list, and
// all faults are reported together before any compute. Reads in slices, so that the peak is the
// model plus one slice. Engine thread only.
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "backend/shared_memory.h"
#include "checkpoint/source.h"
#include "model/weights/weights.h"

namespace strata::model {

// What becomes of weights that files have in 4 to 8 bits.
enum class KeepWeights : uint8_t {
  kBf16,    // dequantised
  kNarrow,  // kept, or an Error where none can be
  kAuto,    // kept where they can be
};

// Whose layers of multi-token prediction are known, for messages.
inline constexpr const char* kKnownMtp =
    "those of DeepSeek-V4 (num_nextn_predict_layers 1), Qwen3.5 and Qwen3-Next "
    "(mtp_num_hidden_layers 1) are";

// What becomes of the layer of multi-token prediction that a checkpoint may hold.
enum class UseMtp : uint8_t { kNever, kIfThere, kAlways };

struct LoadOptions {
  DType compute_dtype = DType::kF32;
  bool strict_config = false;
  UseMtp mtp = UseMtp::kNever;  // kAlways: an Error where it is not there
  // Not empty: the parameters lie in a file of this folder instead of the backend's memory.
  std::string offload = {};
  std::optional<LayerRange> part = {};  // a stage's layers; nothing else is read
  // What weights that files have in 4 to 8 bits are kept in. In f32 they are dequantised.
  KeepWeights keep = KeepWeights::kBf16;
  bool load_in_4bit = false;  // its linear layers are quantised to nf4 (load_in_4bit.h)
  WeightShare share = {};     // of ranks that divide the weights
  TensorShare tensor = {};    // of ranks that divide each matrix
  ExpertShare expert = {};    // of ranks that divide the experts
  // Where processes of a machine have the weights together: their memory, which one of them fills
  // and the others find filled, and how many they are.
  SharedMemory* shared = nullptr;
  int weight_sharers = 1;
};

struct LoadedModel {
  std::string dir;
  ModelConfig config;
  std::unique_ptr<Allocator> files;  // of the weights, where they are offloaded
  std::unique_ptr<ModelWeights> weights;
  std::unique_ptr<CheckpointSource>
      checkpoint;                    // where the weights came from; null for a model made in memory
  std::vector<std::string> ignored;  // tensors on the ignore list
  std::vector<std::string> warnings;
};

// Whether the model is to be made with its layer of multi-token prediction.
bool resolve_use_mtp(const CheckpointSource& checkpoint, const ModelConfig& config, UseMtp use);
LoadedModel load_model(Backend& backend, const std::string& dir, const LoadOptions& options);
// Loads a model whose config was read before: once, where stages load their parts of it, or where a
// plan came first. `options` need not say how strict it was read.
LoadedModel load_model(Backend& backend, const std::string& dir, ParsedConfig config,
                       const LoadOptions& options);

[[noreturn]] void fail_faults(const std::string& dir, const std::vector<std::string>& faults);

// All faults of a checkpoint against the table, one sentence each; fills `ignored`. Renames the
// table's rows to the names in the file: of its form, another spelling, the family's others, or the
// head's where a tied model stores its embedding as that.
std::vector<std::string> match_parameters(const CheckpointSource& checkpoint, ModelWeights& weights,
                                          std::vector<std::string>& ignored);

// Copies a parameter's stored values, widened to f32, into out (row-major, dense).
void read_stored_parameter(Backend& backend, const LoadedModel& model, size_t index,
                           TensorView out);
// Reads rows [first_row, ...) of a matrix so.
void read_stored_rows(Backend& backend, const LoadedModel& model, size_t index, int64_t first_row,
                      TensorView out);

}  // namespace strata::model
