#include "model/weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>

#include "ops/elementwise.h"
#include "ops/pack.h"

namespace strata::model {
namespace {

Parameter make_parameter(std::string name, const Shape& shape) {
  Parameter parameter;
  parameter.name = std::move(name);
  parameter.shape = shape;
  return parameter;
}

int64_t parameter_bytes(const Shape& shape, DType dtype, int64_t width,
                        const RowBlocks& blocks = {}) {
  const int64_t bytes =
      shape.rank() == 2 ? panel_bytes(dtype, blocks.panel_rows(shape[0], width), shape[1], width)
                        : shape.num_elements() * dtype_bytes(DType::kF32);
  return Arena::aligned(bytes);
}

// Of one layer, all experts together.
int64_t spec_bytes(const LayerParamSpec& spec, DType dtype, int64_t width) {
  return parameter_bytes(spec.shape, dtype, width, spec.blocks) *
         std::max<int64_t>(1, spec.num_experts);
}

std::string spec_suffix(const LayerParamSpec& spec, int64_t expert) {
  if (spec.num_experts == 0) return std::string(spec.suffix);
  return fmt::format(fmt::runtime(spec.suffix), expert);
}

void bind(Parameter& parameter, void* memory, DType dtype, int64_t width) {
  if (parameter.is_matrix()) {
    parameter.panel = {.data = memory,
                       .dtype = dtype,
                       .rows = parameter.blocks.panel_rows(parameter.shape[0], width),
                       .cols = parameter.shape[1],
                       .width = width};
  } else {
    parameter.vector = TensorView(memory, DType::kF32, parameter.shape);
  }
}

}  // namespace

ModelWeights::ModelWeights(const ModelConfig& config, DType compute_dtype, int64_t panel_width)
    : config_(config), layer_table_(config), compute_dtype_(compute_dtype) {
  CHECK(compute_dtype == DType::kF32 || compute_dtype == DType::kBF16);
  const Shape embed_shape = {config.vocab_size, config.hidden_size};
  const int64_t embed_bytes = parameter_bytes(embed_shape, compute_dtype, panel_width);
  const int64_t norm_bytes = parameter_bytes({config.hidden_size}, compute_dtype, panel_width);
  int64_t total = embed_bytes * (config.tie_word_embeddings ? 1 : 2) + norm_bytes;
  for (const LayerStack& stack : layer_table_.stacks()) {
    for (const LayerParamSpec& spec : layer_params(config, stack.kind)) {
      total += spec_bytes(spec, compute_dtype, panel_width) * stack.size();
    }
  }
  arena_ = Arena(total);

  embedding_ = table_.size();
  add_parameter(make_parameter("model.embed_tokens.weight", embed_shape), arena_.take(embed_bytes),
                panel_width);
  add_layers(panel_width);
  final_norm_ = table_.size();
  add_parameter(make_parameter("model.norm.weight", {config.hidden_size}), arena_.take(norm_bytes),
                panel_width);
  head_ = embedding_;
  if (!config.tie_word_embeddings) {
    head_ = table_.size();
    add_parameter(make_parameter("lm_head.weight", embed_shape), arena_.take(embed_bytes),
                  panel_width);
  }
}

void ModelWeights::add_parameter(Parameter parameter, void* memory, int64_t panel_width) {
  bind(parameter, memory, compute_dtype_, panel_width);
  table_.push_back(std::move(parameter));
}

// One [n, ...] allocation for each parameter of a stack; the table lists them layer by layer.
void ModelWeights::add_layers(int64_t panel_width) {
  struct StackMemory {
    LayerParamSpecs specs;
    std::vector<char*> memory;  // of each spec
  };
  std::vector<StackMemory> stacks;
  for (const LayerStack& stack : layer_table_.stacks()) {
    StackMemory& made = stacks.emplace_back();
    made.specs = layer_params(config_, stack.kind);
    for (const LayerParamSpec& spec : made.specs) {
      const int64_t bytes = spec_bytes(spec, compute_dtype_, panel_width) * stack.size();
      made.memory.push_back(static_cast<char*>(arena_.take(bytes)));
    }
  }
  layers_.resize(static_cast<size_t>(config_.num_layers));
  layer_indices_.resize(layers_.size());
  for (size_t i = 0; i < layers_.size(); ++i) {
    const LayerPlace& place = layer_table_.at(static_cast<int64_t>(i));
    const StackMemory& stack = stacks[static_cast<size_t>(place.stack)];
    layer_indices_[i].fill(npos);
    for (size_t s = 0; s < stack.specs.size(); ++s) {
      const LayerParamSpec& spec = stack.specs[s];
      const auto role = static_cast<size_t>(spec.role);
      const int64_t bytes = parameter_bytes(spec.shape, compute_dtype_, panel_width, spec.blocks);
      char* memory = stack.memory[s] + place.index * spec_bytes(spec, compute_dtype_, panel_width);
      layer_indices_[i][role] = table_.size();
      for (int64_t e = 0; e < std::max<int64_t>(1, spec.num_experts); ++e) {
        Parameter p =
            make_parameter(fmt::format("model.layers.{}.{}", i, spec_suffix(spec, e)), spec.shape);
        p.layer = static_cast<int>(i);
        p.expert = spec.num_experts > 0 ? static_cast<int>(e) : -1;
        p.role = spec.role;
        p.blocks = spec.blocks;
        p.buffer = spec.buffer;
        add_parameter(std::move(p), memory + e * bytes, panel_width);
      }
      layers_[i].matrix[role] = table_[layer_indices_[i][role]].panel;
      layers_[i].vector[role] = table_[layer_indices_[i][role]].vector;
    }
  }
}

int64_t ModelWeights::num_parameters() const {
  int64_t count = 0;
  for (const Parameter& parameter : table_) {
    if (!parameter.buffer) count += parameter.shape.num_elements();
  }
  return count;
}

std::vector<StoredTensor> ModelWeights::stored_tensors() const {
  std::vector<StoredTensor> tensors;
  std::unordered_map<std::string_view, size_t> places;
  for (size_t index = 0; index < table_.size(); ++index) {
    const auto [place, added] = places.try_emplace(table_[index].name, tensors.size());
    if (added) tensors.push_back({table_[index].name, table_[index].tensor_shape(), {}});
    tensors[place->second].parameters.push_back(index);
  }
  for (StoredTensor& tensor : tensors) {
    std::sort(tensor.parameters.begin(), tensor.parameters.end(),
              [&](size_t a, size_t b) { return table_[a].first_row < table_[b].first_row; });
  }
  return tensors;
}

size_t ModelWeights::layer_index(int64_t layer, LayerParam role) const {
  return layer_indices_[static_cast<size_t>(layer)][static_cast<size_t>(role)];
}

void ModelWeights::write(Backend& backend, size_t index, int64_t first_row, TensorView rows) {
  Parameter& parameter = table_[index];
  if (parameter.is_matrix()) {
    pack_rows(backend, parameter.blocks, rows, first_row, parameter.panel);
    return;
  }
  CHECK(first_row == 0 && rows.shape.num_elements() == parameter.shape[0]);
  const TensorView source = rows.reshape({1, parameter.shape[0]});
  const TensorView target = parameter.vector.reshape({1, parameter.shape[0]});
  ops::copy(backend, source, target);
  if (compute_dtype_ == DType::kBF16 && !parameter.buffer) {
    float* values = parameter.vector.f32();
    std::transform(values, values + parameter.shape[0], values, round_to_bf16);
  }
}

void ModelWeights::read(Backend& backend, size_t index, int64_t first_row, TensorView rows) const {
  const Parameter& parameter = table_[index];
  if (parameter.is_matrix()) {
    unpack_rows(backend, parameter.blocks, parameter.panel, first_row, rows);
    return;
  }
  CHECK(first_row == 0 && rows.shape.num_elements() == parameter.shape[0]);
  ops::copy(backend, parameter.vector.reshape({1, parameter.shape[0]}),
            rows.reshape({1, parameter.shape[0]}));
}

}  // namespace strata::model
