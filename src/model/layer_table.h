// LayerTable: where each layer of a model lives. Layers of one kind share a stack, wherever they
// sit in the model; the table maps a global layer index to (stack, index in it, kind). Global
// indices are what users, files and messages see. Plain values, const after construction.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "model/config.h"

namespace strata::model {

struct LayerPlace {
  LayerKind kind;
  int64_t stack = 0;
  int64_t index = 0;  // in the stack
};

// Layers of one kind, by their global indices, ascending.
struct LayerStack {
  LayerKind kind;
  std::vector<int64_t> layers;
  [[nodiscard]] int64_t size() const { return static_cast<int64_t>(layers.size()); }
};

class LayerTable {
 public:
  // Stacks come in the order of their first layers.
  explicit LayerTable(const ModelConfig& config);

  [[nodiscard]] const LayerPlace& at(int64_t layer) const {
    return places_[static_cast<size_t>(layer)];
  }
  [[nodiscard]] int64_t num_layers() const { return static_cast<int64_t>(places_.size()); }
  [[nodiscard]] std::span<const LayerStack> stacks() const { return stacks_; }

 private:
  std::vector<LayerPlace> places_;
  std::vector<LayerStack> stacks_;
};

}  // namespace strata::model
