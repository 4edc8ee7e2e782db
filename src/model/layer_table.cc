#include "model/layer_table.h"

#include <algorithm>

namespace strata::model {

LayerTable::LayerTable(const ModelConfig& config) {
  places_.reserve(static_cast<size_t>(config.num_layers));
  for (int64_t layer = 0; layer < config.num_layers; ++layer) {
    const LayerKind kind = config.layer_kind(layer);
    auto stack = std::find_if(stacks_.begin(), stacks_.end(),
                              [&](const LayerStack& s) { return s.kind == kind; });
    if (stack == stacks_.end()) stack = stacks_.insert(stacks_.end(), {kind, {}});
    places_.push_back({kind, stack - stacks_.begin(), stack->size()});
    stack->layers.push_back(layer);
  }
}

}  // namespace strata::model
