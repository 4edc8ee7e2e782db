// SPDX-License-Identifier: Apache-2.0
#include "model/weights/weights.h"

#include <algorithm>

#include "backend/file_memory.h"
#include "model/expert_ranks.h"
#include "model/tensor_ranks.h"
#include "model/weights/no_layers.h"
#include "model/weights/rank_division.h"
#include "model/weights/tensor_names.h"
#include "model/weights/weight_shards.h"
#include "ops/elementwise.h"
#include "ops/pack.h"

namespace strata::model {
namespace {

int64_t matrix_bytes(const Shape& shape, DType dtype, int64_t width, const RowBlocks& blocks = {},
                     NarrowForm form = NarrowForm::kNone) {
  return Arena::aligned(
      panel_matrix_bytes(dtype, blocks.panel_rows(shape[0], width), shape[1], width, form));
}

int64_t values_bytes(const Shape& shape) {
  return Arena::aligned(shape.num_elements() * dtype_bytes(DType::kF32));
}

// Bytes of a row of one expert.
int64_t expert_bytes(const ParamRow& row, DType dtype, int64_t width,
                     NarrowForm form = NarrowForm::kNone) {
  return row.is_matrix() ? matrix_bytes(row.shape, dtype, width, row.blocks, form)
                         : values_bytes(row.shape);
}

// Calls body(row, sublayer, whether it is the connector's) for every parameter of a stack's layers,
// in checkpoint order.
template <typename Body>
void for_each_row(const LayerStack& stack, Body body) {
  for (size_t s = 0; s < stack.rows.size(); ++s) {
    for (const bool outer : {true, false}) {
      for (const ParamRow& row : outer ? stack.rows[s].outer : stack.rows[s].inner) {
        if (row.is_parameter()) body(row, s, outer);
      }
    }
  }
}

void take_outputs_of(const ParamRow& row, Parameter& p) {
  if (row.whole_outputs == 0) return;
  p.outputs = row.output_deal();
  p.first_output = row.first_output;
}

Parameter make_parameter(const ModelConfig& config, const ParamRow& row, int64_t layer,
                         int64_t expert) {
  Parameter p;
  p.name = layer_tensor_name(config, layer, row.suffix, expert);
  if (!row.others.empty() && (config.stores_as_one || row.others.front().is_usual)) {
    const Spelling& whole = row.others.front();
    p.name = layer_tensor_name(config, layer, whole.suffix, expert);
    p.stored_shape = whole.stored;
    p.first_row = whole.first_row + expert * whole.rows_per_expert;
    p.runs = whole.runs;
  }
  p.layer = static_cast<int>(layer);
  p.expert = row.num_experts > 0 ? static_cast<int>(expert) : -1;
  p.row = &row;
  p.shape = row.shape;
  p.draw = row.is_matrix() ? ParamDraw::kNormal : row.draw;
  p.init = row.init;
  p.floor = row.floor;
  p.buffer = row.buffer;
  p.blocks = row.blocks;
  take_outputs_of(row, p);
  return p;
}

Parameter make_parameter(std::string name, const Shape& shape, float init = 0.0f) {
  Parameter p;
  p.name = std::move(name);
  p.shape = shape;
  p.draw = p.is_matrix() ? ParamDraw::kNormal : ParamDraw::kConstant;
  p.init = init;
  return p;
}

// The view of `key`, made when it is not there.
ParamView& ensure_view(std::vector<ParamView>& views, int key) {
  const auto index = static_cast<size_t>(key);
  if (views.size() <= index) views.resize(index + 1);
  return views[index];
}

void check_part(const LayerRange& part, const ModelConfig& config) {
  if (part == kNoLayers) return;
  CHECK(part.first >= 0 && part.last <= config.num_layers(), part.first, part.last);
  CHECK(part.size() > 0 || config.num_layers() == 0, part.first, part.last);
}

// Where the parameters' memory comes from; what is divided is there as ranks bring it.
Allocator& choose_allocator(const Backend& backend, FileAllocator* files, const WeightShare& share,
                            Allocator* shared) {
  CHECK((files != nullptr) + share.is_divided() + (shared != nullptr) <= 1);
  if (files != nullptr) return *files;
  if (shared != nullptr) return *shared;
  return share.is_divided() ? sparse_allocator() : backend.allocator();
}

void set_parameter_memory(Parameter& parameter, void* memory, DType dtype, int64_t width,
                          NarrowForm form) {
  if (parameter.is_matrix()) {
    parameter.panel = {.data = memory,
                       .dtype = dtype,
                       .rows = parameter.blocks.panel_rows(parameter.shape[0], width),
                       .cols = parameter.shape[1],
                       .width = width,
                       .form = form};
  } else {
    parameter.values = TensorView(memory, DType::kF32, parameter.shape);
  }
}

}  // namespace

int64_t ModelWeights::embed_bytes(const ParamRow& row, int64_t panel_width) const {
  return matrix_bytes(row.shape, compute_dtype_, panel_width, {},
                      narrow_form_of(std::string(row.suffix)));
}

int64_t ModelWeights::row_bytes(const ParamRow& row, int64_t panel_width, NarrowForm form) const {
  return expert_bytes(row, compute_dtype_, panel_width, form) * own_parts_of(row).count;
}

int64_t ModelWeights::arena_bytes(int64_t panel_width) const {
  const ParamRows& vocabulary = layer_table_.vocabulary_rows();
  int64_t total = holds_embedding() ? embed_bytes(vocabulary.front(), panel_width) : 0;
  for (const LayerStack& stack : layer_table_.stacks()) {
    for_each_row(stack, [&](const ParamRow& row, size_t, bool) {
      total += held_row_bytes(stack, row, panel_width);
    });
  }
  if (begins()) {
    for (const ParamRow& row : layer_table_.per_layer_rows())
      total += row_bytes(row, panel_width, narrow_form_of(row, -1));
  }
  if (!ends()) return total;
  for (const ParamRows* rows : {&layer_table_.streams_rows(), &layer_table_.mtp_rows()}) {
    for (const ParamRow& row : *rows) total += row_bytes(row, panel_width);
  }
  total += values_bytes({config_.hidden_size});
  return config_.tie_word_embeddings ? total : total + embed_bytes(vocabulary.back(), panel_width);
}

ModelWeights::ModelWeights(const Backend& backend, const ModelConfig& config, DType compute_dtype,
                           FileAllocator* files, std::optional<LayerRange> part, WeightForms forms,
                           const WeightShare& share, Allocator* shared, const TensorShare& tensor,
                           const ExpertShare& expert)
    : config_(config),
      own_config_(config_of_share(config, tensor)),
      part_(part.value_or(LayerRange{0, config.num_layers()})),
      share_(share),
      expert_share_(expert),
      layer_table_(config, tensor),
      compute_dtype_(compute_dtype),
      forms_(std::move(forms)) {
  CHECK(forms_.empty() || compute_dtype == DType::kBF16, forms_.size());
  CHECK(compute_dtype == DType::kF32 || compute_dtype == DType::kBF16);
  check_part(part_, config);
  if (share.is_divided() && config.per_layer_inputs) {
    throw Error(
        ErrorCode::kUnsupported,
        "--shard-weights: weights that make inputs of each layer (Gemma 4 E2B, E4B) are not "
        "divided among ranks; leave it out");
  }
  const int64_t panel_width = ops::panel_width(backend);
  arena_ = Arena(choose_allocator(backend, files, share, shared), arena_bytes(panel_width));
  if (tensor.is_divided()) tensor_ranks_ = std::make_unique<TensorRanks>(tensor);
  if (expert.is_divided()) expert_ranks_ = std::make_unique<ExpertRanks>(expert);
  const ParamRows& vocabulary = layer_table_.vocabulary_rows();
  embedding_ = add_vocabulary_matrix(vocabulary.front(), holds_embedding(), panel_width);
  add_per_layer_parameters(panel_width);
  add_layer_parameters(panel_width);
  add_streams_parameters(panel_width);
  add_mtp_head_parameters(panel_width);
  final_norm_ = add_final_norm(panel_width);
  head_ = config.tie_word_embeddings
              ? embedding_
              : add_vocabulary_matrix(vocabulary.back(), ends(), panel_width);
  make_sublayer_contexts();
  if (share.is_divided()) divide_among_ranks(panel_width, backend.allocator());
  if (files == nullptr) return;
  pages_ = std::make_unique<WeightPages>(pages_of_layers(),
                                         backend.page_queue("weights' files", *files));
}

ModelWeights::~ModelWeights() = default;

TensorShare ModelWeights::tensor_share() const {
  return tensor_ranks_ ? tensor_ranks_->share() : TensorShare();
}

int64_t ModelWeights::memory_bytes() const {
  if (shards_) return shards_->num_bytes();
  return pages_ ? 0 : (num_bytes() + num_sharers_ - 1) / num_sharers_;
}

void ModelWeights::enter_layer(const Backend& backend, int64_t layer, int64_t next) const {
  if (pages_) pages_->enter_layer(&backend, layer, next);
  if (shards_) shards_->apply_turn(shards_needed_at_layer(shards_->units(), layer, next));
}

// The pages of each layer, and then those of what is outside the layers.
std::vector<std::vector<PageRange>> ModelWeights::pages_of_layers() const {
  std::vector<std::vector<PageRange>> pages(params_.size() + 1);
  for (const Parameter& parameter : table_) {
    if (!parameter.held) continue;
    const PageRange range = parameter.is_matrix()
                                ? PageRange{parameter.panel.data, parameter.panel.num_bytes()}
                                : PageRange{parameter.values.data, parameter.values.num_bytes()};
    std::vector<PageRange>& of =
        parameter.layer < 0 ? pages.back() : pages[static_cast<size_t>(parameter.layer)];
    append_range(range, of);
  }
  return pages;
}

ModelWeights::HeldLayers ModelWeights::held_layers_of(const LayerStack& stack) const {
  const auto first = std::lower_bound(stack.layers.begin(), stack.layers.end(), part_.first);
  const int64_t end = ends() ? layer_table_.num_layers() : part_.last;
  const auto last = std::lower_bound(first, stack.layers.end(), end);
  return {.first = first - stack.layers.begin(), .count = last - first};
}

NarrowForm ModelWeights::narrow_form_of(const std::string& name) const {
  const auto found = forms_.find(name);
  return found == forms_.end() ? NarrowForm::kNone : found->second;
}

NarrowForm ModelWeights::narrow_form_of(const ParamRow& row, int64_t layer) const {
  if (forms_.empty() || !row.is_matrix()) return NarrowForm::kNone;
  return narrow_form_of(layer_tensor_name(config_, layer, row.suffix, 0));
}

int64_t ModelWeights::held_row_bytes(const LayerStack& stack, const ParamRow& row,
                                     int64_t panel_width) const {
  const HeldLayers held = held_layers_of(stack);
  int64_t bytes = 0;
  for (int64_t i = held.first; i < held.first + held.count; ++i) {
    bytes += row_bytes(row, panel_width, narrow_form_of(row, stack.layers[static_cast<size_t>(i)]));
  }
  return bytes;
}

size_t ModelWeights::add_parameter(Parameter parameter, void* memory, int64_t panel_width,
                                   NarrowForm form) {
  parameter.held = memory != nullptr;
  parameter.bytes = parameter.is_matrix() ? matrix_bytes(parameter.shape, compute_dtype_,
                                                         panel_width, parameter.blocks, form)
                                          : values_bytes(parameter.shape);
  if (parameter.held) set_parameter_memory(parameter, memory, compute_dtype_, panel_width, form);
  table_.push_back(std::move(parameter));
  return table_.size() - 1;
}

size_t ModelWeights::add_vocabulary_matrix(const ParamRow& row, bool held, int64_t panel_width) {
  const std::string name(row.suffix);
  Parameter parameter = make_parameter(name, row.shape);
  take_outputs_of(row, parameter);
  return add_parameter(std::move(parameter),
                       held ? arena_.take(embed_bytes(row, panel_width)) : nullptr, panel_width,
                       narrow_form_of(name));
}

size_t ModelWeights::add_final_norm(int64_t panel_width) {
  return add_parameter(
      make_parameter("model.norm.weight", {config_.hidden_size}, 1.0f - config_.norm_offset),
      ends() ? arena_.take(values_bytes({config_.hidden_size})) : nullptr, panel_width);
}

void ModelWeights::bind_view(std::vector<ParamView>& views, const ParamRow& row, size_t index) {
  ParamView& view = ensure_view(views, row.key);
  view.panel = table_[index].panel;
  view.values = table_[index].values;
  view.index = index;
  view.bias = row.bias;
}

std::vector<std::vector<char*>> ModelWeights::allocate_stacks(int64_t panel_width) {
  std::vector<std::vector<char*>> memory;
  for (const LayerStack& stack : layer_table_.stacks()) {
    std::vector<char*>& rows = memory.emplace_back();
    for_each_row(stack, [&](const ParamRow& row, size_t, bool) {
      const int64_t bytes = held_row_bytes(stack, row, panel_width);
      rows.push_back(bytes == 0 ? nullptr : static_cast<char*>(arena_.take(bytes)));
    });
  }
  return memory;
}

size_t ModelWeights::add_row_parameters(const ParamRow& row, int64_t layer, int64_t panel_width,
                                        char*& memory) {
  const NarrowForm form = narrow_form_of(row, layer);
  const int64_t bytes = expert_bytes(row, compute_dtype_, panel_width, form);
  const AxisPart own = own_parts_of(row);
  const size_t index = table_.size();
  for (int64_t e = 0; e < std::max<int64_t>(1, row.num_experts); ++e) {
    const bool is_held = memory != nullptr && e >= own.first && e < own.end();
    add_parameter(make_parameter(config_, row, layer, e),
                  is_held ? memory + (e - own.first) * bytes : nullptr, panel_width, form);
  }
  if (memory != nullptr) memory += row_bytes(row, panel_width, form);
  return index + static_cast<size_t>(own.first);
}

// One [n, ...] allocation for each parameter of a stack; the table lists them layer by layer.
void ModelWeights::add_layer_parameters(int64_t panel_width) {
  std::vector<std::vector<char*>> memory =
      allocate_stacks(panel_width);  // of each row's next layer
  params_.resize(static_cast<size_t>(layer_table_.num_layers()));
  for (int64_t layer = 0; layer < layer_table_.num_layers(); ++layer) {
    const LayerPlace& place = layer_table_.at(layer);
    const LayerStack& stack = layer_table_.stack_of(layer);
    const bool held = holds_layer(layer);
    std::vector<SublayerParams>& views = params_[static_cast<size_t>(layer)];
    views.resize(stack.rows.size());
    size_t next = 0;
    for_each_row(stack, [&](const ParamRow& row, size_t s, bool outer) {
      char* none = nullptr;
      char*& rows = memory[static_cast<size_t>(place.stack)][next++];
      const size_t index = add_row_parameters(row, layer, panel_width, held ? rows : none);
      bind_view(outer ? views[s].outer : views[s].inner, row, index);
    });
  }
}

void ModelWeights::add_streams_parameters(int64_t panel_width) {
  if (!config_.streams) return;
  for (const ParamRow& row : layer_table_.streams_rows()) {
    const int64_t bytes = row_bytes(row, panel_width);
    const size_t index = add_parameter(make_parameter(config_, row, -1, 0),
                                       ends() ? arena_.take(bytes) : nullptr, panel_width);
    bind_view(streams_params_, row, index);
  }
  streams_ = {.config = config_.streams->config(), .params = streams_params_, .layer = -1};
}

void ModelWeights::add_per_layer_parameters(int64_t panel_width) {
  per_layer_first_ = table_.size();
  for (const ParamRow& row : layer_table_.per_layer_rows()) {
    const NarrowForm form = narrow_form_of(row, -1);
    const int64_t bytes = row_bytes(row, panel_width, form);
    const size_t index = add_parameter(make_parameter(config_, row, -1, 0),
                                       begins() ? arena_.take(bytes) : nullptr, panel_width, form);
    bind_view(per_layer_params_, row, index);
  }
  per_layer_last_ = table_.size();
  if (per_layer_params_.empty()) return;
  per_layer_params_[kPerLayerProjection].target = kPerLayerModelProjection;
  per_layer_inputs_ = {.params = per_layer_params_, .layer = -1};
}

void ModelWeights::add_mtp_head_parameters(int64_t panel_width) {
  const int64_t layer = config_.num_layers();
  mtp_first_ = table_.size();
  for (const ParamRow& row : layer_table_.mtp_rows()) {
    const int64_t bytes = row_bytes(row, panel_width);
    const size_t index = add_parameter(make_parameter(config_, row, layer, 0),
                                       ends() ? arena_.take(bytes) : nullptr, panel_width);
    bind_view(mtp_params_, row, index);
  }
  mtp_last_ = table_.size();
  if (!config_.use_mtp || !config_.streams) return;
  mtp_streams_ = {.config = config_.streams->config(), .params = mtp_params_, .layer = layer};
}

namespace {

// Views of the block's parameters that an adapter may change, and of targets that are no parameter.
void bind_targets(const std::vector<int>& target_of, std::vector<ParamView>& views) {
  for (size_t key = 0; key < target_of.size(); ++key) {
    if (target_of[key] >= 0) {
      ensure_view(views, static_cast<int>(key)).target = target_of[key];
    }
  }
}

}  // namespace

// The contexts that blocks and connectors run in: their config, views and adapter targets.
void ModelWeights::make_sublayer_contexts() {
  layers_.resize(params_.size());
  for (size_t layer = 0; layer < params_.size(); ++layer) {
    const auto index = static_cast<int64_t>(layer);
    if (!holds_layer(index)) continue;
    const LayerStack& stack = layer_table_.stack_of(index);
    for (size_t s = 0; s < stack.config.size(); ++s) {
      SublayerParams& params = params_[layer][s];
      bind_targets(stack.target_of[s], params.inner);
      const Sublayer& sublayer =
          index < config_.num_layers() ? own_config_.layers[layer][s] : (*own_config_.mtp_layer)[s];
      layers_[layer].push_back({.connector = &sublayer.connector.ops(),
                                .block = &sublayer.block.ops(),
                                .outer = {.config = sublayer.connector.config(),
                                          .params = params.outer,
                                          .layer = index,
                                          .sublayer = static_cast<int>(s)},
                                .inner = {.config = sublayer.block.config(),
                                          .params = params.inner,
                                          .layer = index,
                                          .sublayer = static_cast<int>(s)}});
    }
  }
}

int64_t ModelWeights::num_parameters() const {
  int64_t count = 0;
  for (const Parameter& parameter : table_) {
    if (parameter.trains()) count += parameter.shape.num_elements();
  }
  return count;
}

void ModelWeights::prepare_write(size_t index, int64_t bytes) {
  if (pages_) {
    pages_->restore_evicted(table_[index].layer);
    pages_->trim_written(bytes);
  }
  if (shards_) shards_->trim_written(unit_of(index), bytes);
}

void ModelWeights::write_rows(Backend& backend, size_t index, int64_t first_row, TensorView rows) {
  Parameter& parameter = table_[index];
  prepare_write(index, rows.num_bytes());
  if (parameter.is_matrix()) {
    pack_rows(backend, parameter.blocks, rows, first_row, parameter.panel);
    return;
  }
  const int64_t count = parameter.shape.num_elements();
  CHECK(first_row == 0 && rows.shape.num_elements() == count);
  ops::copy(backend, rows.reshape({1, count}), parameter.values.reshape({1, count}));
  if (compute_dtype_ == DType::kBF16 && parameter.floor != DType::kF32) {
    ops::round_to_bf16_in_place(backend, parameter.values);
  }
}

void ModelWeights::write_narrow_rows(Backend& backend, size_t index, int64_t first_row,
                                     const NarrowRows& rows) {
  const Parameter& parameter = table_[index];
  prepare_write(index, rows.rows * narrow_layout(rows.form).row_bytes(rows.cols));
  pack_narrow_rows(backend, parameter.blocks, rows, first_row, parameter.panel);
}

void ModelWeights::prepare_read(size_t index) const {
  const Parameter& parameter = table_[index];
  if (pages_) pages_->restore_evicted(parameter.layer);
  if (!divides(index)) return;
  ShardTurn turn;
  turn.need(unit_of(index));
  shards_->apply_turn(turn);
}

void ModelWeights::read_rows(Backend& backend, size_t index, int64_t first_row,
                             TensorView rows) const {
  const Parameter& parameter = table_[index];
  prepare_read(index);
  if (parameter.is_matrix()) {
    unpack_rows(backend, parameter.blocks, parameter.panel, first_row, rows);
    return;
  }
  const int64_t count = parameter.shape.num_elements();
  CHECK(first_row == 0 && rows.shape.num_elements() == count);
  ops::copy(backend, parameter.values.reshape({1, count}), rows.reshape({1, count}));
}

TensorShare largest_share(const Backend& backend, const ModelConfig& config, DType compute_dtype,
                          int num_ranks) {
  TensorShare largest = {.num_ranks = num_ranks};
  int64_t most = 0;
  for (int rank = 0; rank < num_ranks && num_ranks > 1; ++rank) {
    const ModelWeights weights(backend, config, compute_dtype, nullptr, {}, {}, {}, nullptr,
                               {rank, num_ranks});
    if (weights.num_bytes() <= most) continue;
    most = weights.num_bytes();
    largest.rank = rank;
  }
  return largest;
}

}  // namespace strata::model
