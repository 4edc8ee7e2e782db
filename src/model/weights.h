// ModelWeights: the base model's parameters. Matrices are panels in one arena, the only copy;
// vectors (norms, biases) are f32, holding bf16-rounded values in bf16 mode. Layers of one kind
// live in one stack (model/layer_table.h): each parameter is one [n, ...] allocation, and a layer's
// view points into it, so a write through a view is a write to the stack. The table lists every
// parameter with its checkpoint name; loading, saving and training are loops over it. Engine thread
// only.
#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "model/config.h"
#include "model/layer_params.h"
#include "model/layer_table.h"
#include "tensor/arena.h"
#include "tensor/panel.h"
#include "tensor/view.h"

namespace strata::model {

// One row of the weight table. `layer` is -1 outside the stacks, `expert` -1 outside the experts.
struct Parameter {
  std::string name;  // in a checkpoint
  int layer = -1;
  int expert = -1;
  LayerParam role = LayerParam::kInputNorm;  // meaningful when layer >= 0
  Shape shape;                               // [rows, cols] of a matrix, [n] of a vector
  // The tensor in a checkpoint may be larger: rows [first_row, ...) of it, all leading axes
  // flattened (experts stored as one tensor). Empty stored_shape: the tensor is the parameter.
  Shape stored_shape;
  int64_t first_row = 0;
  bool buffer = false;  // not trained, kept in f32 exactly
  [[nodiscard]] const Shape& tensor_shape() const {
    return stored_shape.rank() == 0 ? shape : stored_shape;
  }
  PanelView panel;    // matrices
  RowBlocks blocks;   // of the panel's rows
  TensorView vector;  // vectors: [n] f32
  [[nodiscard]] bool is_matrix() const { return shape.rank() == 2; }
};

// What a block sees of one layer: views into the stack. Absent parameters are empty. Matrices of
// experts lie one behind the other, [E, rows, cols].
struct LayerWeights {
  std::array<PanelView, kNumLayerParams> matrix;  // of experts: the first one's
  std::array<TensorView, kNumLayerParams> vector;
  [[nodiscard]] PanelView panel(LayerParam p) const { return matrix[static_cast<size_t>(p)]; }
  [[nodiscard]] PanelView expert_panel(LayerParam p, int64_t expert) const {
    PanelView view = panel(p);
    view.data = static_cast<char*>(view.data) + expert * Arena::aligned(view.num_bytes());
    return view;
  }
  [[nodiscard]] TensorView vec(LayerParam p) const { return vector[static_cast<size_t>(p)]; }
};

// A tensor of a checkpoint and the rows of the weight table it holds, in the order of its rows.
struct StoredTensor {
  std::string_view name;
  Shape shape;
  std::vector<size_t> parameters;
};

class ModelWeights {
 public:
  // Allocates zeroed parameters. compute_dtype is the type of products: f32 or bf16.
  ModelWeights(const ModelConfig& config, DType compute_dtype, int64_t panel_width);

  [[nodiscard]] const ModelConfig& config() const { return config_; }
  [[nodiscard]] const LayerTable& layers() const { return layer_table_; }
  [[nodiscard]] DType compute_dtype() const { return compute_dtype_; }
  [[nodiscard]] const std::vector<Parameter>& table() const { return table_; }
  [[nodiscard]] std::vector<Parameter>& table() { return table_; }
  [[nodiscard]] int64_t num_parameters() const;  // buffers not counted
  // The table by checkpoint tensors, in its order. Borrows names from the table.
  [[nodiscard]] std::vector<StoredTensor> stored_tensors() const;
  [[nodiscard]] int64_t num_bytes() const { return arena_.size(); }

  [[nodiscard]] const LayerWeights& layer(int64_t index) const {
    return layers_[static_cast<size_t>(index)];
  }
  [[nodiscard]] PanelView embedding() const { return table_[embedding_].panel; }
  // The head; the embedding when tied, read at every call.
  [[nodiscard]] PanelView head() const { return table_[head_].panel; }
  [[nodiscard]] TensorView final_norm() const { return table_[final_norm_].vector; }
  // Indices into the table.
  [[nodiscard]] size_t embedding_index() const { return embedding_; }
  [[nodiscard]] size_t head_index() const { return head_; }
  [[nodiscard]] size_t final_norm_index() const { return final_norm_; }
  // Index of a layer's parameter, or npos when the layer has none. Of experts the first one's; the
  // others follow it.
  [[nodiscard]] size_t layer_index(int64_t layer, LayerParam role) const;
  static constexpr size_t npos = static_cast<size_t>(-1);

  // Writes a parameter by index from row-major f32, bf16 or f16 rows [first_row, ...), converting;
  // a vector is one row. In bf16 mode vectors are rounded to bf16 too.
  void write(Backend& backend, size_t index, int64_t first_row, TensorView rows);
  // Reads rows into f32 or (matrices in bf16 mode) bf16 memory.
  void read(Backend& backend, size_t index, int64_t first_row, TensorView rows) const;

 private:
  void add_layers(int64_t panel_width);
  void add_parameter(Parameter parameter, void* memory, int64_t panel_width);

  ModelConfig config_;
  LayerTable layer_table_;
  DType compute_dtype_;
  Arena arena_;
  std::vector<Parameter> table_;
  std::vector<LayerWeights> layers_;
  std::vector<std::array<size_t, kNumLayerParams>> layer_indices_;
  size_t embedding_ = 0;
  size_t head_ = 0;
  size_t final_norm_ = 0;
};

}  // namespace strata::model
