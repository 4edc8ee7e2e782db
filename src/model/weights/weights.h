// SPDX-License-Identifier: Apache-2.0
// ModelWeights: the base model's parameters. Matrices are panels in one arena, the only copy; the
// rest (norms, biases) is f32, holding bf16-rounded values in bf16 mode. Layers of one config live
// in one stack (model/weights/layer_table.h): each parameter is one [n, ...] allocation, and a
// layer's view points into it, so a write through a view is a write to the stack. The table lists
// every parameter with its checkpoint name; loading, saving and training are loops over it. A stage
// of a model is the same with a part of the layers: its table is the whole model's, so that numbers
// and names are those of every other stage, and what it does not hold has no memory. Engine thread
// only.
#pragma once
#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "backend/arena.h"
#include "backend/backend.h"
#include "backend/memory_share.h"
#include "model/config.h"
#include "model/weights/expert_share.h"
#include "model/weights/layer_table.h"
#include "model/weights/weight_pages.h"
#include "model/weights/weight_share.h"
#include "tensor/panel.h"
#include "tensor/view.h"

namespace strata {
struct BytePart;  // backend/divided_memory.h
}  // namespace strata

namespace strata::model {

// One row of the weight table. `layer` is -1 outside the layers, `expert` -1 outside the experts.
struct Parameter {
  std::string name;  // in a checkpoint
  int layer = -1;    // config.num_layers(): of multi-token prediction
  int expert = -1;
  const ParamRow* row = nullptr;  // what its block, connector or streams declare
  Shape shape;                    // [rows, cols] of a matrix
  // The tensor in a checkpoint may be larger: rows [first_row, ...) of it, all leading axes
  // flattened (experts stored as one tensor). Empty stored_shape: the tensor is the parameter.
  Shape stored_shape;
  int64_t first_row = 0;
  std::span<const RowRuns> runs = {};  // in place of first_row; its spelling's
  // Where tensor ranks divide it: all outputs, of which this rank has those from `first_output` on,
  // copies of others' first. Without any it is whole.
  Deal outputs = {};
  int64_t first_output = 0;
  ParamDraw draw = ParamDraw::kConstant;
  float init = 0.0f;
  DType floor = DType::kBF16;  // kF32: not rounded in bf16 mode
  bool buffer = false;         // not trained
  bool held = true;            // false: another stage's or expert rank's, without memory
  [[nodiscard]] bool trains() const { return held && !buffer; }
  // On all tensor ranks together; and that of its tensor in a checkpoint.
  [[nodiscard]] Shape whole_shape() const;
  [[nodiscard]] Shape tensor_shape() const {
    return stored_shape.rank() == 0 ? whole_shape() : stored_shape;
  }
  int64_t bytes = 0;  // of memory, where it is held
  PanelView panel;    // matrices
  RowBlocks blocks;   // of the panel's rows
  TensorView values;  // what is not a matrix: f32, dense
  [[nodiscard]] bool is_integers() const { return row != nullptr && row->integers > 0; }
  [[nodiscard]] bool is_matrix() const { return shape.rank() == 2 && floor != DType::kF32; }
  // Where ranks divide the weights each has all of it, since each moves it.
  [[nodiscard]] bool stays_whole() const { return row != nullptr && row->balances; }
  // Rows that loading, saving and init walk: what is not a matrix is one row, or has one for each
  // output where ranks divide these.
  [[nodiscard]] int64_t num_rows() const { return is_matrix() || outputs.size > 0 ? shape[0] : 1; }
  [[nodiscard]] int64_t num_whole_rows() const {
    return outputs.size > 0 ? outputs.size : num_rows();
  }
  // The rows of the whole parameter that are a tensor rank's alone: it has them, and no rank before
  // it does. Before them it has so many copies of rows of others.
  [[nodiscard]] AxisPart own_rows_of(const TensorShare& share) const;
  [[nodiscard]] int64_t num_lead_rows_of(const TensorShare& share) const;
  // All that it has, with those that another one has too.
  [[nodiscard]] int64_t num_rows_of(const TensorShare& share) const;
  [[nodiscard]] int64_t num_cols() const {
    return is_matrix() ? shape[1] : shape.num_elements() / num_rows();
  }
};

// How matrices of a model are kept in few bits (tensor/narrow.h), by the name that a checkpoint of
// Hugging Face has for them (layer_tensor_name), experts by that of the first: all of a layer have
// one form. Others are bf16.
using WeightForms = std::unordered_map<std::string, NarrowForm>;

// The matrix of one expert; `first` is that of expert 0. They lie one behind the other.
inline PanelView expert_panel(PanelView first, int64_t expert) {
  first.data = static_cast<char*>(first.data) + expert * Arena::aligned(first.num_bytes());
  return first;
}

// "model.layers.3.mlp.experts.7.up_proj.weight" of a suffix in which "{}" is the expert; of layer
// -1 "model.hc_head.fn", of that behind the last "model.mtp.0.norm.weight".
std::string layer_tensor_name(const ModelConfig& config, int64_t layer, std::string_view suffix,
                              int64_t expert);

// Calls body(the first of them, its row in the tensor, how many) for rows [begin, end) of a
// parameter: for each of the runs of rows that are next to each other in its tensor.
template <typename Body>
void for_each_stored_run(const Parameter& parameter, int64_t begin, int64_t end, Body body) {
  if (parameter.runs.empty()) {
    const int64_t at = parameter.first_row + parameter.first_output + begin;
    if (begin < end) body(begin, at, end - begin);
    return;
  }
  int64_t first = -parameter.first_output;  // of the parameter's rows, in a run
  for (const RowRuns& runs : parameter.runs) {
    for (int64_t i = 0; i < runs.count; ++i, first += runs.rows) {
      const int64_t from = std::max(begin, first);
      const int64_t to = std::min(end, first + runs.rows);
      if (from < to) body(from, runs.first_row + i * runs.step + from - first, to - from);
    }
  }
}

// Rows of a parameter that are next to each other in its tensor.
struct StoredRows {
  size_t parameter = 0;
  int64_t first = 0;  // of the whole parameter's rows
  int64_t count = 0;
  int64_t at = 0;  // in the tensor
};

// A tensor of a checkpoint and what it holds of the weight table, in the order of its rows.
struct StoredTensor {
  std::string_view name;
  Shape shape;
  std::vector<size_t> parameters;
  std::vector<StoredRows> rows;
};

struct ShardUnits;
class ExpertRanks;
class TensorRanks;
class WeightShards;

class ModelWeights {
 public:
  // Allocates zeroed parameters. compute_dtype is the type of products: f32 or bf16. With `files`
  // they lie there and not in the backend's memory; then passes say where they are
  // (enter_layer). With `part` it holds those layers; the first of a model's parts has
  // the embedding, the last one what comes after the layers, and both have the embedding where the
  // last one reads it too: as its head, or for multi-token prediction. Of compute_dtype bf16
  // matrices have their `forms`. With a `share` of several ranks it keeps that part of what it
  // holds, once the ranks are connected (shards), and passes say where they are, likewise. With
  // `shared` all of it is there. With `tensor` each matrix that tensor ranks divide has this rank's
  // outputs. With `expert` it holds this rank's experts of each layer.
  ModelWeights(const Backend& backend, const ModelConfig& config, DType compute_dtype,
               FileAllocator* files = nullptr, std::optional<LayerRange> part = {},
               WeightForms forms = {}, const WeightShare& share = {}, Allocator* shared = nullptr,
               const TensorShare& tensor = {}, const ExpertShare& expert = {});
  ~ModelWeights();
  ModelWeights(const ModelWeights&) = delete;
  ModelWeights& operator=(const ModelWeights&) = delete;

  [[nodiscard]] const ModelConfig& config() const { return config_; }
  // What passes run: of tensor ranks blocks have this rank's units.
  [[nodiscard]] const ModelConfig& own_config() const { return own_config_; }
  [[nodiscard]] const LayerTable& layers() const { return layer_table_; }
  [[nodiscard]] DType compute_dtype() const { return compute_dtype_; }
  // The layers that it holds, and whether the model begins and ends with them.
  [[nodiscard]] const LayerRange& part() const { return part_; }
  [[nodiscard]] bool begins() const { return part_.first == 0; }
  [[nodiscard]] bool ends() const { return part_.last == config_.num_layers(); }
  // A layer behind the last one is multi-token prediction's.
  [[nodiscard]] bool holds_layer(int64_t layer) const {
    return part_.contains(layer) || (layer >= config_.num_layers() && ends());
  }
  // Whether the target of an adapter is among what it holds; layer -1 outside the layers.
  [[nodiscard]] bool holds(int64_t layer, int target) const {
    if (layer >= 0) return holds_layer(layer);
    if (target == kPerLayerModelProjection) return begins();
    return target == kEmbedding ? begins() || (ends() && config_.use_mtp) : ends();
  }
  [[nodiscard]] const std::vector<Parameter>& table() const { return table_; }
  [[nodiscard]] std::vector<Parameter>& table() { return table_; }
  // That it holds; buffers not counted.
  [[nodiscard]] int64_t num_parameters() const;
  // The table by checkpoint tensors, in its order. Borrows names from the table.
  [[nodiscard]] std::vector<StoredTensor> stored_tensors() const;
  [[nodiscard]] int64_t num_bytes() const { return arena_.size(); }
  // Bytes of memory, with what passes have of other ranks' parts; this process's part of what
  // several have together.
  [[nodiscard]] int64_t memory_bytes() const;
  void set_sharers(int num_processes) { num_sharers_ = num_processes; }
  // The part of memory_bytes() that is not the process's own.
  [[nodiscard]] int64_t shared_bytes() const { return num_sharers_ > 1 ? memory_bytes() : 0; }
  // The forms of matrices; none where all are of the compute type.
  [[nodiscard]] const WeightForms& forms() const { return forms_; }

  [[nodiscard]] bool in_files() const { return pages_ != nullptr; }
  // A pass of this backend is at this layer, and then at `next` (num_layers: the head): of weights
  // in files, what comes next is read ahead, and what is done with leaves the memory.
  void enter_layer(const Backend& backend, int64_t layer, int64_t next) const;
  // Where ranks divide weights, passes call these before layers, behind them, and between batches.
  void enter_embedding() const;
  void enter_end() const;
  void release_divided_weights() const;
  // Where weights are that ranks divide; else null.
  [[nodiscard]] WeightShards* shards() const { return shards_.get(); }
  // The ranks that divide each matrix; null where none do.
  [[nodiscard]] TensorRanks* tensor_ranks() const { return tensor_ranks_.get(); }
  [[nodiscard]] TensorShare tensor_share() const;
  // The ranks that divide the experts; null where none do.
  [[nodiscard]] ExpertRanks* expert_ranks() const { return expert_ranks_.get(); }
  // The experts that this rank has of so many of a layer.
  [[nodiscard]] AxisPart own_experts(int64_t num_experts) const {
    return expert_share_.own_experts(num_experts);
  }
  // Whether ranks keep a part of a parameter each, and not this one all that it holds of it.
  [[nodiscard]] bool divides(size_t index) const;
  // Whether this rank has any of what rows [first, end) of a parameter become: true where it has
  // all. Others it need not write_rows().
  [[nodiscard]] bool keeps(size_t index, int64_t first, int64_t end) const;
  // Whether another rank, of those that divide the parameter, keeps them, wherever it is held; then
  // it is in no few bits.
  [[nodiscard]] bool is_kept_by(const MemoryShare& share, size_t index, int64_t first,
                                int64_t end) const;
  // The units that one of the expert ranks has of a stage with these layers.
  [[nodiscard]] ShardUnits shard_units(const LayerRange& part, int expert_rank) const;

  // A layer's sublayers, ready to run; none where it is another stage's.
  [[nodiscard]] std::span<const SublayerContext> layer(int64_t index) const {
    return layers_[static_cast<size_t>(index)];
  }
  // The streams' config and parameters; only where the model has streams.
  [[nodiscard]] const BlockContext& streams() const { return streams_; }
  // What makes the inputs of each layer, where the model has any.
  [[nodiscard]] const BlockContext& per_layer_inputs() const { return per_layer_inputs_; }
  // Those of multi-token prediction, and its final norm; its layer is layer(num_layers()).
  [[nodiscard]] const BlockContext& mtp_streams() const { return mtp_streams_; }
  [[nodiscard]] const ParamView& mtp_norm() const { return mtp_params_.back(); }
  [[nodiscard]] PanelView embedding() const { return table_[embedding_].panel; }
  // The head; the embedding when tied, read at every call.
  [[nodiscard]] PanelView head() const { return table_[head_].panel; }
  [[nodiscard]] TensorView final_norm() const { return table_[final_norm_].values; }
  // Indices into the table.
  [[nodiscard]] size_t embedding_index() const { return embedding_; }
  // Whether a parameter outside the layers is read before them: the embedding, or what makes the
  // inputs of each layer.
  [[nodiscard]] bool is_before_layers(size_t index) const {
    return index == embedding_ || (index >= per_layer_first_ && index < per_layer_last_);
  }
  // Whether one is behind multi-token prediction's layer: its streams and final norm.
  [[nodiscard]] bool is_behind_mtp_layer(size_t index) const {
    return index >= mtp_first_ && index < mtp_last_;
  }
  [[nodiscard]] size_t head_index() const { return head_; }
  [[nodiscard]] size_t final_norm_index() const { return final_norm_; }
  static constexpr size_t npos = static_cast<size_t>(-1);

  // Writes a parameter by index from row-major f32, bf16 or f16 rows [first_row, ...), converting;
  // what is not a matrix is one row. In bf16 mode that is rounded to bf16 too, unless its floor is
  // f32.
  void write_rows(Backend& backend, size_t index, int64_t first_row, TensorView rows);
  // Writes rows of a matrix in few bits, which `write_rows` does not write.
  void write_narrow_rows(Backend& backend, size_t index, int64_t first_row, const NarrowRows& rows);
  // Reads rows into f32 or (matrices in bf16 mode) bf16 memory.
  void read_rows(Backend& backend, size_t index, int64_t first_row, TensorView rows) const;

 private:
  // The memory of each stack and row for its held layers, one behind the other; null where none is.
  std::vector<std::vector<char*>> allocate_stacks(int64_t panel_width);
  void add_layer_parameters(int64_t panel_width);
  // A layer's parameters of a row, all experts, of which this rank's lie at `memory`, which moves
  // behind them; null: they are another stage's. Returns the index of its first one.
  size_t add_row_parameters(const ParamRow& row, int64_t layer, int64_t panel_width, char*& memory);
  void add_streams_parameters(int64_t panel_width);
  void add_per_layer_parameters(int64_t panel_width);
  void add_mtp_head_parameters(int64_t panel_width);
  void make_sublayer_contexts();
  [[nodiscard]] std::vector<std::vector<PageRange>> pages_of_layers() const;
  void divide_among_ranks(int64_t panel_width, Allocator& of_work);
  void lay_out_units(int64_t panel_width);
  [[nodiscard]] size_t unit_of(size_t index) const;
  // Which expert rank alone has it, counted from 1; 0: all have it.
  [[nodiscard]] size_t sort_of(size_t index) const;
  [[nodiscard]] std::vector<std::vector<PageRange>> ranges_of_units(size_t sort) const;
  [[nodiscard]] BytePart bytes_of_rows(const Parameter& parameter, int64_t first,
                                       int64_t end) const;
  // The view of a row, whose (first) parameter is `index` in the table.
  void bind_view(std::vector<ParamView>& views, const ParamRow& row, size_t index);
  // Before so many bytes of a parameter are written: of memory that is kept small meanwhile.
  void prepare_write(size_t index, int64_t bytes);
  // Before a parameter is read: of memory that has it elsewhere meanwhile.
  void prepare_read(size_t index) const;
  // Each adds a row of the table and returns its index; without memory where it is another stage's.
  size_t add_vocabulary_matrix(const ParamRow& row, bool held, int64_t panel_width);
  size_t add_final_norm(int64_t panel_width);
  size_t add_parameter(Parameter parameter, void* memory, int64_t panel_width,
                       NarrowForm form = NarrowForm::kNone);
  // The form of a layer's row, of all its experts.
  [[nodiscard]] NarrowForm narrow_form_of(const ParamRow& row, int64_t layer) const;
  [[nodiscard]] NarrowForm narrow_form_of(const std::string& name) const;
  // Which of its experts are this rank's; of a plain row the one that there is.
  [[nodiscard]] AxisPart own_parts_of(const ParamRow& row) const {
    return row.num_experts > 0 ? own_experts(row.num_experts) : AxisPart{0, 1};
  }
  // Bytes of a row of one layer, this rank's experts together.
  [[nodiscard]] int64_t row_bytes(const ParamRow& row, int64_t panel_width,
                                  NarrowForm form = NarrowForm::kNone) const;
  // The bytes that are held of a stack's row.
  [[nodiscard]] int64_t held_row_bytes(const LayerStack& stack, const ParamRow& row,
                                       int64_t panel_width) const;
  // The bytes of the embedding or the head, and of all parameters that are held.
  [[nodiscard]] int64_t embed_bytes(const ParamRow& row, int64_t panel_width) const;
  [[nodiscard]] int64_t arena_bytes(int64_t panel_width) const;
  [[nodiscard]] bool holds_embedding() const {
    return begins() || (ends() && (config_.tie_word_embeddings || config_.use_mtp));
  }
  // The layers that it holds of a stack, and the first of them in the stack.
  struct HeldLayers {
    int64_t first = 0;
    int64_t count = 0;
  };
  [[nodiscard]] HeldLayers held_layers_of(const LayerStack& stack) const;

  ModelConfig config_;
  ModelConfig own_config_;
  LayerRange part_;
  WeightShare share_;
  ExpertShare expert_share_;
  LayerTable layer_table_;
  DType compute_dtype_;
  WeightForms forms_;
  Arena arena_;
  std::unique_ptr<WeightPages> pages_;    // of weights in files
  std::unique_ptr<WeightShards> shards_;  // of those that ranks divide
  std::unique_ptr<TensorRanks> tensor_ranks_;
  std::unique_ptr<ExpertRanks> expert_ranks_;
  // The bytes of each of these' units, by sort of parameters, and those before a parameter in its
  // own.
  std::vector<std::vector<int64_t>> unit_bytes_;
  std::vector<int64_t> bytes_before_;
  int64_t panel_width_ = 0;
  int num_sharers_ = 1;
  std::vector<Parameter> table_;
  // The connector's and the block's parameters of a sublayer, by key.
  struct SublayerParams {
    std::vector<ParamView> outer, inner;
  };
  std::vector<std::vector<SublayerParams>> params_;
  std::vector<std::vector<SublayerContext>> layers_;
  std::vector<ParamView> streams_params_, per_layer_params_, mtp_params_;
  BlockContext streams_, per_layer_inputs_, mtp_streams_;
  size_t per_layer_first_ = 0, per_layer_last_ = 0;  // their rows in the table
  size_t mtp_first_ = 0, mtp_last_ = 0;              // likewise
  size_t embedding_ = 0;
  size_t head_ = 0;
  size_t final_norm_ = 0;
};

// The one of so many tensor ranks whose parameters of this type take the most memory: what a plan
// for each of them is made of. Axes do not always divide evenly, and ranks behind the first have
// copies of rows besides. The memory is not touched.
TensorShare largest_share(const Backend& backend, const ModelConfig& config, DType compute_dtype,
                          int num_ranks);

}  // namespace strata::model
