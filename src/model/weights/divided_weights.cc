// SPDX-License-Identifier: Apache-2.0
// What ModelWeights does where ranks divide its memory among themselves
// (model/weights/weight_shards.h).
#include "model/weights/weight_shards.h"
#include "model/weights/weights.h"

namespace strata::model {

void ModelWeights::enter_embedding() const {
  if (shards_) shards_->apply_turn(shards_needed_at_embedding(shards_->units()));
}

void ModelWeights::enter_end() const {
  if (shards_) shards_->apply_turn(shards_needed_at_end(shards_->units()));
}

void ModelWeights::release_divided_weights() const {
  if (shards_) shards_->apply_turn({});
}

size_t ModelWeights::unit_of(size_t index) const {
  const auto num_layers = static_cast<size_t>(layer_table_.num_layers());
  const int layer = table_[index].layer;
  if (layer >= 0) return static_cast<size_t>(layer);
  return index == embedding_ ? num_layers : num_layers + 1;
}

size_t ModelWeights::sort_of(size_t index) const {
  const Parameter& parameter = table_[index];
  if (parameter.expert < 0 || !expert_share_.is_divided()) return 0;
  const int rank = expert_share_.rank_of(parameter.expert, parameter.row->num_experts);
  return static_cast<size_t>(rank) + 1;
}

bool ModelWeights::divides(size_t index) const {
  if (!share_.is_divided() || table_[index].stays_whole()) return false;
  return sort_of(index) == 0 || share_.experts.is_divided();
}

void ModelWeights::divide_among_ranks(int64_t panel_width, Allocator& of_work) {
  lay_out_units(panel_width);
  const auto own_sort = static_cast<size_t>(expert_share_.rank) + 1;
  shards_ =
      std::make_unique<WeightShards>(shard_units(part_, expert_share_.rank), ranges_of_units(0),
                                     ranges_of_units(own_sort), share_, of_work);
}

// Each unit in the table's order, of all stages.
void ModelWeights::lay_out_units(int64_t panel_width) {
  panel_width_ = panel_width;
  const size_t num_units = static_cast<size_t>(layer_table_.num_layers()) + 2;
  unit_bytes_.assign(static_cast<size_t>(expert_share_.num_ranks) + 1,
                     std::vector<int64_t>(num_units));
  for (size_t index = 0; index < table_.size(); ++index) {
    int64_t& bytes = unit_bytes_[sort_of(index)][unit_of(index)];
    bytes_before_.push_back(bytes);
    if (divides(index)) bytes += table_[index].bytes;
  }
}

namespace {

// Whether the stage has a parameter of this layer, or (-1) of what is outside the layers.
bool has_parameter(const ShardUnits& units, int layer, bool is_embedding) {
  if (layer >= 0) {
    return units.part.contains(layer) || (units.ends() && layer >= units.num_layers);
  }
  if (is_embedding) return units.begins() || (units.ends() && units.end_has_embedding);
  return units.ends();
}

}  // namespace

ShardUnits ModelWeights::shard_units(const LayerRange& part, int expert_rank) const {
  ShardUnits units = {.part = part,
                      .num_layers = config_.num_layers(),
                      .end_has_embedding = config_.tie_word_embeddings || config_.use_mtp};
  units.bytes.resize(static_cast<size_t>(layer_table_.num_layers()) + 2);
  units.expert_bytes.resize(units.bytes.size());
  for (size_t index = 0; index < table_.size(); ++index) {
    if (!has_parameter(units, table_[index].layer, index == embedding_)) continue;
    const size_t sort = sort_of(index), unit = unit_of(index);
    if (sort != 0 && sort != static_cast<size_t>(expert_rank) + 1) continue;
    int64_t& divided = sort == 0 ? units.bytes[unit] : units.expert_bytes[unit];
    (divides(index) ? divided : units.whole_bytes) += table_[index].bytes;
  }
  return units;
}

std::vector<std::vector<PageRange>> ModelWeights::ranges_of_units(size_t sort) const {
  std::vector<std::vector<PageRange>> units(static_cast<size_t>(layer_table_.num_layers()) + 2);
  for (size_t index = 0; index < table_.size(); ++index) {
    const Parameter& parameter = table_[index];
    if (!parameter.held || !divides(index) || sort_of(index) != sort) continue;
    void* const data = parameter.is_matrix() ? parameter.panel.data : parameter.values.data;
    append_range({data, parameter.bytes}, units[unit_of(index)]);
  }
  return units;
}

bool ModelWeights::keeps(size_t index, int64_t first, int64_t end) const {
  return is_kept_by(sort_of(index) == 0 ? share_.all : share_.experts, index, first, end);
}

// What rows [first, end) become, among the parameter's bytes: all where rows are in no order.
BytePart ModelWeights::bytes_of_rows(const Parameter& parameter, int64_t first, int64_t end) const {
  if (!parameter.is_matrix() || !parameter.blocks.empty()) return {0, parameter.bytes};
  PanelView panel = parameter.panel;
  if (!parameter.held)
    panel = {.dtype = compute_dtype_, .cols = parameter.shape[1], .width = panel_width_};
  const int64_t end_panel = (end + panel.width - 1) / panel.width;
  return {first / panel.width * panel.panel_bytes(), end_panel * panel.panel_bytes()};
}

bool ModelWeights::is_kept_by(const MemoryShare& share, size_t index, int64_t first,
                              int64_t end) const {
  if (!divides(index)) return true;
  const BytePart bytes = bytes_of_rows(table_[index], first, end);
  const BytePart part = part_of(unit_bytes_[sort_of(index)][unit_of(index)], share);
  const int64_t before = bytes_before_[index];
  return before + bytes.first < part.end && part.first < before + bytes.end;
}

}  // namespace strata::model
