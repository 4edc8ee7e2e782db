// SPDX-License-Identifier: Apache-2.0
// Where the parameters of a weight table are in a checkpoint: their names, shapes and rows.
#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>

#include "model/weights/weights.h"

namespace strata::model {

Shape Parameter::whole_shape() const {
  if (whole_outputs == 0) return shape;
  Shape whole = {whole_outputs};
  for (int axis = 1; axis < shape.rank(); ++axis) whole.push_back(shape[axis]);
  return whole;
}

std::string layer_tensor_name(const ModelConfig& config, int64_t layer, std::string_view suffix,
                              int64_t expert) {
  const std::string name = fmt::format(fmt::runtime(suffix), expert);
  if (layer < 0) return "model." + name;
  const int64_t behind = layer - config.num_layers();
  if (behind < 0) return fmt::format("model.layers.{}.{}", layer, name);
  return config.mtp_tensor_name == nullptr ? fmt::format("model.mtp.{}.{}", behind, name)
                                           : config.mtp_tensor_name(name);
}

std::vector<StoredTensor> ModelWeights::stored_tensors() const {
  std::vector<StoredTensor> tensors;
  std::unordered_map<std::string_view, size_t> places;
  for (size_t index = 0; index < table_.size(); ++index) {
    const auto [place, added] = places.try_emplace(table_[index].name, tensors.size());
    if (added) tensors.push_back({table_[index].name, table_[index].tensor_shape(), {}, {}});
    StoredTensor& tensor = tensors[place->second];
    tensor.parameters.push_back(index);
    for_each_stored_run(table_[index], 0, table_[index].num_rows(),
                        [&](int64_t first, int64_t at, int64_t count) {
                          tensor.rows.push_back({index, first, count, at});
                        });
  }
  for (StoredTensor& tensor : tensors) {
    std::sort(tensor.parameters.begin(), tensor.parameters.end(),
              [&](size_t a, size_t b) { return table_[a].first_row < table_[b].first_row; });
    std::sort(tensor.rows.begin(), tensor.rows.end(),
              [](const StoredRows& a, const StoredRows& b) { return a.at < b.at; });
  }
  return tensors;
}

}  // namespace strata::model
