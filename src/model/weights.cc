#include "model/weights.h"

#include <fmt/format.h>

#include <algorithm>

#include "ops/elementwise.h"
#include "ops/pack.h"

namespace strata::model {
namespace {

struct RoleSpec {
  LayerParam role;
  std::string_view suffix;
  Shape shape;
};

// The rows a layer has, by the config. Sources: HF modeling_llama.py, modeling_qwen3.py.
std::vector<RoleSpec> layer_specs(const ModelConfig& c) {
  const int64_t d = c.hidden_size;
  const int64_t f = c.intermediate_size;
  std::vector<RoleSpec> specs = {
      {LayerParam::kInputNorm, "input_layernorm.weight", {d}},
      {LayerParam::kQProj, "self_attn.q_proj.weight", {c.q_width(), d}},
      {LayerParam::kKProj, "self_attn.k_proj.weight", {c.kv_width(), d}},
      {LayerParam::kVProj, "self_attn.v_proj.weight", {c.kv_width(), d}},
      {LayerParam::kOProj, "self_attn.o_proj.weight", {d, c.q_width()}},
  };
  if (c.attention_bias) {
    specs.push_back({LayerParam::kQBias, "self_attn.q_proj.bias", {c.q_width()}});
    specs.push_back({LayerParam::kKBias, "self_attn.k_proj.bias", {c.kv_width()}});
    specs.push_back({LayerParam::kVBias, "self_attn.v_proj.bias", {c.kv_width()}});
    specs.push_back({LayerParam::kOBias, "self_attn.o_proj.bias", {d}});
  }
  if (c.qk_norm) {
    specs.push_back({LayerParam::kQNorm, "self_attn.q_norm.weight", {c.head_dim}});
    specs.push_back({LayerParam::kKNorm, "self_attn.k_norm.weight", {c.head_dim}});
  }
  specs.push_back({LayerParam::kPostNorm, "post_attention_layernorm.weight", {d}});
  specs.push_back({LayerParam::kGateProj, "mlp.gate_proj.weight", {f, d}});
  specs.push_back({LayerParam::kUpProj, "mlp.up_proj.weight", {f, d}});
  specs.push_back({LayerParam::kDownProj, "mlp.down_proj.weight", {d, f}});
  if (c.mlp_bias) {
    specs.push_back({LayerParam::kGateBias, "mlp.gate_proj.bias", {f}});
    specs.push_back({LayerParam::kUpBias, "mlp.up_proj.bias", {f}});
    specs.push_back({LayerParam::kDownBias, "mlp.down_proj.bias", {d}});
  }
  return specs;
}

Parameter make_parameter(std::string name, const Shape& shape) {
  Parameter parameter;
  parameter.name = std::move(name);
  parameter.shape = shape;
  return parameter;
}

int64_t parameter_bytes(const Shape& shape, DType dtype, int64_t width) {
  const int64_t bytes = shape.rank() == 2 ? panel_bytes(dtype, shape[0], shape[1], width)
                                          : shape.num_elements() * dtype_bytes(DType::kF32);
  return Arena::aligned(bytes);
}

void bind(Parameter& parameter, void* memory, DType dtype, int64_t width) {
  if (parameter.is_matrix()) {
    parameter.panel = {.data = memory,
                       .dtype = dtype,
                       .rows = parameter.shape[0],
                       .cols = parameter.shape[1],
                       .width = width};
  } else {
    parameter.vector = TensorView(memory, DType::kF32, parameter.shape);
  }
}

}  // namespace

ModelWeights::ModelWeights(const ModelConfig& config, DType compute_dtype, int64_t panel_width)
    : config_(config), compute_dtype_(compute_dtype) {
  CHECK(compute_dtype == DType::kF32 || compute_dtype == DType::kBF16);
  const std::vector<RoleSpec> specs = layer_specs(config);
  const Shape embed_shape = {config.vocab_size, config.hidden_size};
  const auto bytes = [&](const Shape& shape) {
    return parameter_bytes(shape, compute_dtype, panel_width);
  };

  int64_t total =
      bytes(embed_shape) * (config.tie_word_embeddings ? 1 : 2) + bytes({config.hidden_size});
  for (const RoleSpec& spec : specs) total += bytes(spec.shape) * config.num_layers;
  arena_ = Arena(total);

  embedding_ = table_.size();
  table_.push_back(make_parameter("model.embed_tokens.weight", embed_shape));
  bind(table_.back(), arena_.take(bytes(embed_shape)), compute_dtype, panel_width);
  layers_.resize(static_cast<size_t>(config.num_layers));
  layer_indices_.resize(layers_.size());
  for (auto& indices : layer_indices_) indices.fill(npos);
  // One [n, ...] allocation for each parameter; the table lists them layer by layer.
  std::vector<char*> stacks;
  for (const RoleSpec& spec : specs) {
    stacks.push_back(static_cast<char*>(arena_.take(bytes(spec.shape) * config.num_layers)));
  }
  for (size_t i = 0; i < layers_.size(); ++i) {
    for (size_t s = 0; s < specs.size(); ++s) {
      const auto role = static_cast<size_t>(specs[s].role);
      Parameter p =
          make_parameter(fmt::format("model.layers.{}.{}", i, specs[s].suffix), specs[s].shape);
      p.layer = static_cast<int>(i);
      p.role = specs[s].role;
      bind(p, stacks[s] + static_cast<int64_t>(i) * bytes(specs[s].shape), compute_dtype,
           panel_width);
      layers_[i].matrix[role] = p.panel;
      layers_[i].vector[role] = p.vector;
      layer_indices_[i][role] = table_.size();
      table_.push_back(std::move(p));
    }
  }
  final_norm_ = table_.size();
  table_.push_back(make_parameter("model.norm.weight", {config.hidden_size}));
  bind(table_.back(), arena_.take(bytes({config.hidden_size})), compute_dtype, panel_width);
  head_ = embedding_;
  if (!config.tie_word_embeddings) {
    head_ = table_.size();
    table_.push_back(make_parameter("lm_head.weight", embed_shape));
    bind(table_.back(), arena_.take(bytes(embed_shape)), compute_dtype, panel_width);
  }
}

int64_t ModelWeights::num_parameters() const {
  int64_t count = 0;
  for (const Parameter& parameter : table_) count += parameter.shape.num_elements();
  return count;
}

size_t ModelWeights::layer_index(int64_t layer, LayerParam role) const {
  return layer_indices_[static_cast<size_t>(layer)][static_cast<size_t>(role)];
}

void ModelWeights::write(Backend& backend, size_t index, int64_t first_row, TensorView rows) {
  Parameter& parameter = table_[index];
  if (parameter.is_matrix()) {
    ops::pack(backend, rows, first_row, parameter.panel);
    return;
  }
  CHECK(first_row == 0 && rows.shape.num_elements() == parameter.shape[0]);
  const TensorView source = rows.reshape({1, parameter.shape[0]});
  const TensorView target = parameter.vector.reshape({1, parameter.shape[0]});
  ops::copy(backend, source, target);
  if (compute_dtype_ == DType::kBF16) {
    float* values = parameter.vector.f32();
    std::transform(values, values + parameter.shape[0], values, round_to_bf16);
  }
}

void ModelWeights::read(Backend& backend, size_t index, int64_t first_row, TensorView rows) const {
  const Parameter& parameter = table_[index];
  if (parameter.is_matrix()) {
    ops::unpack(backend, parameter.panel, first_row, rows);
    return;
  }
  CHECK(first_row == 0 && rows.shape.num_elements() == parameter.shape[0]);
  ops::copy(backend, parameter.vector.reshape({1, parameter.shape[0]}),
            rows.reshape({1, parameter.shape[0]}));
}

}  // namespace strata::model
