// SPDX-License-Identifier: Apache-2.0
// LayerTable: where each layer of a model lives and what it declares. Layers of equal config share
// a stack, wherever they sit in the model; the table maps a global layer index to (stack, index in
// it), and holds each stack's rows of parameters and its adapter targets. Global indices are what
// users, files and messages see. Plain values, const after construction; views and adapters point
// into it, so it stays where it was made.
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "model/config.h"

namespace strata::model {

// A matrix whose outputs are rows of a target's B.
struct TargetPart {
  int target = 0;  // the matrix's own, among the layer's
  int64_t first_row = 0;
  int64_t rows = 0;
  AxisPart own = {};  // of these rows
};

// A place where an adapter may sit: a linear projection, or an embedding.
struct LoraTarget {
  std::string path;  // below the layer, "self_attn.q_proj"; outside the layers the whole path
  int64_t in = 0;
  int64_t out = 0;
  AxisPart own = {};         // the outputs that this rank makes, of which products read B: all, or
                             // those of a tensor rank
  int64_t num_experts = 0;   // 0: not of experts
  int64_t num_halves = 1;    // B's outputs belong to so many parameters in turn
  bool alternating = false;  // PEFT's gate_up_proj has these as rows in turn
  // PEFT's tensors of all experts are [E, in, out], which it takes for [E, out, in]: what is A here
  // is its B [in, E R], and B its A [E R, out].
  bool swapped = false;
  RowBlocks blocks = {};  // how the outputs divide; empty for most
  BlockGroup group = BlockGroup::kAttention;
  // The matrices of a projection that files name as one and that is several here. Those have
  // targets for their products alone, which are parts: no adapter names them.
  std::vector<TargetPart> parts = {};
  bool is_part = false;
  // Rows of B in files that B's rows here are in turn; empty: in the same order.
  std::vector<RowRuns> stored_rows = {};
  bool is_fresh = true;           // a fresh adapter may have it
  bool of_indexer = false;        // or may where indexers train
  std::string_view stacked = {};  // in Tinker's stacked export: "w1"; of halves "w1 w3"
  // Its last component: "q_proj".
  [[nodiscard]] std::string_view name() const {
    return std::string_view(path).substr(path.rfind('.') + 1);
  }
};

// Adapter targets outside the layers; the last one where the model has inputs of each layer.
constexpr int kEmbedding = 0;
constexpr int kHead = 1;
constexpr int kPerLayerModelProjection = 2;
// Embedding and head as multi-token prediction uses them, with gradients apart; no targets of their
// own (model/adapter/lora.h).
constexpr int kMtpEmbedding = 3;
constexpr int kMtpHead = 4;

// Tokens that tensor ranks leave together.
constexpr int64_t kVocabularyUnit = 16;

// Keys of what makes the inputs of each layer (model/per_layer_inputs.h).
enum PerLayerKey : uint8_t { kPerLayerEmbedding, kPerLayerProjection, kPerLayerNorm };

// The rows of one sublayer: its connector's, and its block's.
struct SublayerRows {
  ParamRows outer;
  ParamRows inner;
};

// Layers of one config, by their global indices, ascending.
struct LayerStack {
  LayerConfig config;
  std::vector<SublayerRows> rows;           // of each sublayer
  std::vector<LoraTarget> targets;          // in the order of an adapter's modules
  std::vector<std::vector<int>> target_of;  // [sublayer][key of the block's row], -1: none
  std::vector<int64_t> layers;
  [[nodiscard]] int64_t size() const { return static_cast<int64_t>(layers.size()); }
};

// Layers [first, last) of a model.
struct LayerRange {
  int64_t first = 0;
  int64_t last = 0;
  [[nodiscard]] int64_t size() const { return last - first; }
  [[nodiscard]] bool contains(int64_t layer) const { return layer >= first && layer < last; }
  friend bool operator==(const LayerRange&, const LayerRange&) = default;
};

struct LayerPlace {
  int64_t stack = 0;
  int64_t index = 0;  // in the stack
};

class LayerTable {
 public:
  // Stacks come in the order of their first layers.
  // With a `share` rows that tensor ranks divide have this rank's outputs.
  explicit LayerTable(const ModelConfig& config, const TensorShare& share = {});
  LayerTable(const LayerTable&) = delete;
  LayerTable& operator=(const LayerTable&) = delete;

  [[nodiscard]] const LayerPlace& at(int64_t layer) const {
    return places_[static_cast<size_t>(layer)];
  }
  [[nodiscard]] const LayerStack& stack_of(int64_t layer) const {
    return stacks_[static_cast<size_t>(at(layer).stack)];
  }
  // With that of multi-token prediction, which is the last, where it takes part.
  [[nodiscard]] int64_t num_layers() const { return static_cast<int64_t>(places_.size()); }
  [[nodiscard]] std::span<const LayerStack> stacks() const { return stacks_; }
  // The embedding, and the head where it has a matrix of its own, under their whole names.
  // Parameters of them have no row (weights.h).
  [[nodiscard]] const ParamRows& vocabulary_rows() const { return vocabulary_rows_; }
  // What the streams declare, outside the layers.
  [[nodiscard]] const ParamRows& streams_rows() const { return streams_rows_; }
  // What makes the inputs of each layer, by PerLayerKey; empty where the model has none.
  [[nodiscard]] const ParamRows& per_layer_rows() const { return per_layer_rows_; }
  // What reads the state of multi-token prediction: the streams' rows again, and its final norm,
  // which is the last. Empty where it takes no part.
  [[nodiscard]] const ParamRows& mtp_rows() const { return mtp_rows_; }
  // Layers whose attention has an indexer.
  [[nodiscard]] int64_t num_indexers() const;
  // Where multi-token prediction takes part, its layer's index.
  [[nodiscard]] std::optional<int64_t> mtp_layer() const { return mtp_layer_; }
  // What the model's modules are called below the head's parent: "model.".
  [[nodiscard]] std::string_view module_prefix() const { return module_prefix_; }
  // What a module is called today that adapters of transformers 4 may call otherwise.
  [[nodiscard]] std::string module_of_older_name(const std::string& path) const {
    return module_of_older_name_ == nullptr ? path : module_of_older_name_(path);
  }
  // The targets of a layer; of layer -1 those outside the layers, kEmbedding and so on.
  [[nodiscard]] std::span<const LoraTarget> targets(int64_t layer) const {
    return layer < 0 ? std::span<const LoraTarget>(model_targets_) : stack_of(layer).targets;
  }

 private:
  void add_layer(const LayerConfig& layer, int64_t hidden_size);
  void add_mtp_layer_and_rows(const ModelConfig& config);
  void add_vocabulary_rows(const ModelConfig& config);
  void add_per_layer_rows_and_target(const ModelConfig& config);
  void add_model_targets(const ModelConfig& config);

  const TensorShare share_;
  std::string_view module_prefix_;
  std::string (*module_of_older_name_)(const std::string& path) = nullptr;
  std::vector<LayerPlace> places_;
  std::vector<LayerStack> stacks_;
  ParamRows vocabulary_rows_, streams_rows_, per_layer_rows_, mtp_rows_;
  std::optional<int64_t> mtp_layer_;
  std::vector<LoraTarget> model_targets_;
};

// Values of rows of parameters, or of a layer's, all experts together, in double: hostile sizes
// stay countable.
double count_values(const ParamRows& rows);
double count_values(const LayerStack& stack);

}  // namespace strata::model
