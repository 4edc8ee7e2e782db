// SPDX-License-Identifier: Apache-2.0
#include "model/weights/layer_table.h"

#include <algorithm>
#include <iterator>

namespace strata::model {
namespace {

struct Placed {
  int order;
  size_t sublayer;
  const ParamRow* row;
  LoraTarget target;
};

// A rank's outputs of a matrix and those before them of which it has copies.
AxisPart outputs_with_lead(const Deal& deal, const TensorShare& share) {
  const AxisPart part = deal.part_of(share);
  const int64_t lead = deal.num_lead(share);
  return {part.first - lead, part.count + lead};
}

LoraTarget make_target(const ParamRow& row, BlockGroup group, const TensorShare& share) {
  const bool own = row.is_parameter();
  const int64_t out = !own                    ? row.lora.out
                      : row.whole_outputs > 0 ? row.whole_outputs
                                              : row.shape[0];
  // A target of several matrices has a part of each one's outputs.
  const AxisPart own_part = own ? AxisPart{row.first_output, row.shape[0]}
                                : outputs_with_lead(Deal{.size = out / row.lora.num_halves}, share);
  return {.path = std::string(row.lora.path),
          .in = own ? row.shape[1] : row.lora.in,
          .out = out,
          .own = own_part,
          .num_experts = row.num_experts,
          .num_halves = row.lora.num_halves,
          .alternating = row.lora.alternating,
          .swapped = row.lora.swapped,
          .blocks = row.blocks,
          .group = group,
          .is_part = row.lora.is_part,
          .is_fresh = row.lora.is_fresh && !row.lora.is_part,
          .of_indexer = row.lora.of_indexer,
          .stacked = row.lora.stacked};
}

// -1 of none.
int largest_key(const ParamRows& rows) {
  int largest = -1;
  for (const ParamRow& row : rows) largest = std::max(largest, row.key);
  return largest;
}

// In the order of an adapter's modules.
std::vector<Placed> ordered_targets(const LayerStack& stack, const TensorShare& share) {
  std::vector<Placed> placed;
  for (size_t s = 0; s < stack.rows.size(); ++s) {
    for (const ParamRow& row : stack.rows[s].inner) {
      if (row.lora.path.empty()) continue;
      const BlockGroup group = stack.config[s].block.ops().group;
      placed.push_back({row.lora.order, s, &row, make_target(row, group, share)});
    }
  }
  std::stable_sort(placed.begin(), placed.end(),
                   [](const Placed& a, const Placed& b) { return a.order < b.order; });
  return placed;
}

// Where files have the rows of a matrix in a larger tensor; none where they are next to each other.
const std::vector<RowRuns>& runs_of(const ParamRows& rows, int key) {
  const auto row =
      std::find_if(rows.begin(), rows.end(), [&](const ParamRow& each) { return each.key == key; });
  CHECK(row != rows.end() && !row->others.empty(), key);
  return row->others.front().runs;
}

// The parts of targets that have any, once all targets have their places: `placed` is in the order
// of the stack's targets.
void resolve_parts(const std::vector<Placed>& placed, LayerStack& stack) {
  for (size_t i = 0; i < placed.size(); ++i) {
    int64_t first_row = 0;
    for (const int key : placed[i].row->lora.parts) {
      if (key == kNoKey) continue;
      const int part = stack.target_of[placed[i].sublayer][static_cast<size_t>(key)];
      const LoraTarget& matrix = stack.targets[static_cast<size_t>(part)];
      stack.targets[i].parts.push_back(
          {.target = part, .first_row = first_row, .rows = matrix.out, .own = matrix.own});
      first_row += matrix.out;
      const std::vector<RowRuns>& runs = runs_of(stack.rows[placed[i].sublayer].inner, key);
      std::copy(runs.begin(), runs.end(), std::back_inserter(stack.targets[i].stored_rows));
    }
  }
}

void add_targets(LayerStack& stack, const TensorShare& share) {
  for (const SublayerRows& rows : stack.rows) {
    stack.target_of.emplace_back(static_cast<size_t>(largest_key(rows.inner) + 1), -1);
  }
  std::vector<Placed> placed = ordered_targets(stack, share);
  for (Placed& item : placed) {
    stack.target_of[item.sublayer][static_cast<size_t>(item.row->key)] =
        static_cast<int>(stack.targets.size());
    stack.targets.push_back(std::move(item.target));
  }
  resolve_parts(placed, stack);
}

void take_share_of_rows(ParamRows& rows, const TensorShare& share) {
  if (!share.is_divided()) return;
  for (ParamRow& row : rows) {
    if (row.is_parameter() && row.shards.axis != ShardAxis::kNone) row.take_share(share);
  }
}

LayerStack make_stack(const LayerConfig& config, int64_t hidden_size, const TensorShare& share) {
  LayerStack stack;
  stack.config = config;
  for (const Sublayer& sublayer : config) {
    SublayerRows& rows = stack.rows.emplace_back();
    sublayer.connector.ops().add_params(sublayer.connector.config(), hidden_size, rows.outer);
    sublayer.block.ops().add_params(sublayer.block.config(), hidden_size, rows.inner);
    if (sublayer.block.divides()) take_share_of_rows(rows.inner, share);
  }
  add_targets(stack, share);
  return stack;
}

}  // namespace

LayerTable::LayerTable(const ModelConfig& config, const TensorShare& share)
    : share_(share),
      module_prefix_(config.module_prefix),
      module_of_older_name_(config.module_of_older_name) {
  places_.reserve(config.layers.size() + 1);
  for (const LayerConfig& layer : config.layers) add_layer(layer, config.hidden_size);
  if (config.use_mtp) add_mtp_layer_and_rows(config);
  if (config.streams) {
    config.streams->ops().add_params(config.streams->config(), config.streams->count(),
                                     config.hidden_size, streams_rows_);
  }
  add_vocabulary_rows(config);
  add_model_targets(config);
  if (config.per_layer_inputs) add_per_layer_rows_and_target(config);
  for (LayerStack& stack : stacks_) {
    for (LoraTarget& target : stack.targets)
      target.path = rename_all(std::move(target.path), config.module_names);
  }
}

void LayerTable::add_vocabulary_rows(const ModelConfig& config) {
  for (const std::string_view name : {"model.embed_tokens.weight", "lm_head.weight"}) {
    ParamRow& row = vocabulary_rows_.emplace_back();
    row.suffix = name;
    row.shape = {config.vocab_size, config.hidden_size};
    row.shards = uneven_outputs_by((config.vocab_size + kVocabularyUnit - 1) / kVocabularyUnit,
                                   "groups of 16 tokens");
    row.shards.width = kVocabularyUnit;
    if (config.tie_word_embeddings) break;
  }
  take_share_of_rows(vocabulary_rows_, share_);
}

void LayerTable::add_per_layer_rows_and_target(const ModelConfig& config) {
  const int64_t width = config.per_layer_inputs->width;
  const int64_t all = config.num_layers() * width;
  const RowShards layers = outputs_by(config.num_layers(), "layers");
  per_layer_rows_ = {{.key = kPerLayerEmbedding,
                      .suffix = "embed_tokens_per_layer.weight",
                      .shape = {config.per_layer_inputs->vocab_size, all}},
                     {.key = kPerLayerProjection,
                      .suffix = "per_layer_model_projection.weight",
                      .shape = {all, config.hidden_size},
                      .shards = layers},
                     {.key = kPerLayerNorm,
                      .suffix = "per_layer_projection_norm.weight",
                      .shape = {width},
                      .init = 1.0f}};
  model_targets_.push_back(
      {.path = std::string(config.module_prefix) + "per_layer_model_projection",
       .in = config.hidden_size,
       .out = all,
       .own = {0, all},
       .group = BlockGroup::kMlp});
}

void LayerTable::add_model_targets(const ModelConfig& config) {
  model_targets_.resize(2);
  model_targets_[kEmbedding] = {.path = std::string(config.module_prefix) + "embed_tokens",
                                .in = config.vocab_size,
                                .out = config.hidden_size,
                                .own = {0, config.hidden_size}};
  const ParamRow& head = vocabulary_rows_.back();
  model_targets_[kHead] = {.path = "lm_head",
                           .in = config.hidden_size,
                           .out = config.vocab_size,
                           .own = {head.first_output, head.shape[0]}};
}

void LayerTable::add_layer(const LayerConfig& layer, int64_t hidden_size) {
  auto stack = std::find_if(stacks_.begin(), stacks_.end(),
                            [&](const LayerStack& s) { return s.config == layer; });
  if (stack == stacks_.end())
    stack = stacks_.insert(stacks_.end(), make_stack(layer, hidden_size, share_));
  const int64_t index = num_layers();
  places_.push_back({stack - stacks_.begin(), stack->size()});
  stack->layers.push_back(index);
}

int64_t LayerTable::num_indexers() const {
  int64_t count = 0;
  for (const LayerStack& stack : stacks_) {
    if (std::any_of(stack.targets.begin(), stack.targets.end(),
                    [](const LoraTarget& target) { return target.of_indexer; })) {
      count += stack.size();
    }
  }
  return count;
}

void LayerTable::add_mtp_layer_and_rows(const ModelConfig& config) {
  CHECK(config.mtp_layer.has_value());
  add_layer(*config.mtp_layer, config.hidden_size);
  mtp_layer_ = num_layers() - 1;
  if (config.streams) {
    config.streams->ops().add_params(config.streams->config(), config.streams->count(),
                                     config.hidden_size, mtp_rows_);
  }
  mtp_rows_.push_back({.key = largest_key(mtp_rows_) + 1,
                       .suffix = "norm.weight",
                       .shape = {config.hidden_size},
                       .init = 1.0f - config.norm_offset});
}

double count_values(const ParamRows& rows) {
  double count = 0.0;
  for (const ParamRow& row : rows) {
    if (!row.is_parameter()) continue;
    double values = static_cast<double>(std::max<int64_t>(1, row.num_experts));
    for (int axis = 0; axis < row.shape.rank(); ++axis) {
      values *= static_cast<double>(row.shape[axis]);
    }
    count += values;
  }
  return count;
}

double count_values(const LayerStack& stack) {
  double count = 0.0;
  for (const SublayerRows& sublayer : stack.rows) {
    count += count_values(sublayer.outer) + count_values(sublayer.inner);
  }
  return count;
}

}  // namespace strata::model
