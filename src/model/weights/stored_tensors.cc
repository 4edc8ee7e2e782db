// SPDX-License-Identifier: Apache-2.0
// Where the parameters of a weight table are in a checkpoint: their names, shapes and rows.
#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>

#include "model/weights/weights.h"

namespace strata::model {

Shape Parameter::whole_shape() const {
  if (outputs.size == 0) return shape;
  Shape whole = {outputs.size};
  for (int axis = 1; axis < shape.rank(); ++axis) whole.push_back(shape[axis]);
  return whole;
}

AxisPart Parameter::own_rows_of(const TensorShare& share) const {
  if (outputs.size == 0) return {0, share.rank == 0 ? num_rows() : 0};
  const AxisPart part = outputs.part_of(share);
  return {part.first, outputs.is_copy(share) ? 0 : part.count};
}

int64_t Parameter::num_lead_rows_of(const TensorShare& share) const {
  const bool has_chain = outputs.size > 0 && is_matrix() && blocks.empty();
  return has_chain ? outputs.num_lead(share) : 0;
}

int64_t Parameter::num_rows_of(const TensorShare& share) const {
  if (outputs.size == 0) return num_rows();
  return num_lead_rows_of(share) + outputs.part_of(share).count;
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
    const int64_t first_output = table_[index].first_output;
    for_each_stored_run(table_[index], -first_output, table_[index].num_whole_rows() - first_output,
                        [&](int64_t first, int64_t at, int64_t count) {
                          tensor.rows.push_back({index, first + first_output, count, at});
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
