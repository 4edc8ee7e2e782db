#include "engine/memory_plan.h"

#include <algorithm>

#include "model/head.h"
#include "model/mla_block.h"
#include "model/moe_block.h"

namespace strata::engine {
namespace {

// Program text, libraries, thread stacks and small lists: measured, the same for every model.
constexpr int64_t kProcessBytes = 24 << 20;

// The widest moment inside a layer, beyond its kept activations.
int64_t layer_temporaries(const model::ModelConfig& c, model::LayerKind kind, DType dtype,
                          const PlanShape& shape) {
  const int64_t e = dtype_bytes(dtype);
  const int64_t tokens = shape.pass_tokens;
  const bool backward = shape.backward;
  const int64_t normed = tokens * c.hidden_size * e;
  const bool sparse = kind.mlp == model::MlpKind::kMoe;
  if (kind.attention == model::AttentionKind::kMla) {
    const int64_t dense =
        backward ? tokens * c.intermediate_size * 4 * e + tokens * c.hidden_size * (e + 4)
                 : normed + tokens * c.intermediate_size * e;
    const int64_t mlp =
        sparse ? model::moe_temporary_bytes(c, dtype, tokens, shape.expert_rank, backward) : dense;
    return std::max(mlp, model::mla_temporary_bytes(c, dtype, tokens, shape.rank, backward));
  }
  if (!backward) {
    const int64_t mlp = sparse
                            ? model::moe_temporary_bytes(c, dtype, tokens, shape.expert_rank, false)
                            : normed + tokens * c.intermediate_size * e;
    return std::max(mlp, normed + tokens * (c.q_width() + c.kv_width()) * e);
  }
  const int64_t mlp = sparse
                          ? model::moe_temporary_bytes(c, dtype, tokens, shape.expert_rank, true)
                          : tokens * c.intermediate_size * 4 * e + tokens * c.hidden_size * (e + 4);
  const int64_t attention = tokens * (3 * c.q_width() + 2 * c.kv_width()) * e +
                            tokens * (c.q_width() + c.kv_width()) * 4 +
                            tokens * c.hidden_size * (e + 4);
  return std::max(mlp, attention);
}

// What products and attention take for packed copies, at most.
int64_t op_bytes(const model::ModelConfig& c, DType dtype, const PlanShape& shape) {
  const int64_t widest = std::max({c.intermediate_size, c.q_width(), c.hidden_size});
  return (8 << 20) + shape.pass_tokens * widest * dtype_bytes(dtype) * (shape.backward ? 2 : 1);
}

int64_t pass_bytes(const Engine& engine, const PlanShape& shape) {
  const model::ModelConfig& c = engine.config();
  const DType dtype = engine.model().weights->compute_dtype();
  const int64_t e = dtype_bytes(dtype);
  const int64_t tokens = shape.pass_tokens;
  int64_t layers = 0;     // activations of all of them
  int64_t kept = 0;       // what full recompute keeps of all of them
  int64_t layer = 0;      // activations of the largest
  int64_t temporary = 0;  // the widest moment inside one
  for (const model::LayerStack& stack : engine.model().weights->layers().stacks()) {
    const int64_t one =
        model::activation_bytes(c, stack.kind, dtype, tokens, shape.rank, shape.expert_rank);
    layers += stack.size() * one;
    kept += stack.size() * model::kept_bytes(c, stack.kind, tokens);
    layer = std::max(layer, one);
    temporary = std::max(temporary, layer_temporaries(c, stack.kind, dtype, shape));
  }
  const int64_t boundary = tokens * c.hidden_size * e;
  int64_t bytes = boundary;  // final hidden
  const int64_t chunk = std::min(tokens, model::kHeadChunk);
  const int64_t head = chunk * (c.vocab_size * 4 + c.hidden_size * (e + 4));
  if (!shape.backward) {
    return bytes + 2 * boundary + std::max(head, layer + temporary);
  }
  const bool full = engine.options().recompute == model::Recompute::kFull;
  bytes += (c.num_layers + 1) * boundary + tokens * c.hidden_size * 4;
  const int64_t walk = temporary + tokens * c.hidden_size * 4;
  return full ? bytes + kept + std::max(head, layer + walk) : bytes + layers + std::max(head, walk);
}

}  // namespace

int64_t plan_pass_bytes(const Engine& engine, const PlanShape& shape) {
  const DType dtype = engine.model().weights->compute_dtype();
  return pass_bytes(engine, shape) + op_bytes(engine.config(), dtype, shape);
}

MemoryPlan plan_memory(const Engine& engine, const PlanShape& shape) {
  const model::ModelWeights& weights = *engine.model().weights;
  MemoryPlan plan;
  plan.items.push_back({"weights", weights.num_bytes()});
  int64_t adapters = 0;
  for (const auto& [slot, adapter] : engine.adapters()) {
    const int64_t flat = adapter->num_parameters() * dtype_bytes(DType::kF32);
    // Training adds gradients and two moments.
    adapters += adapter->num_bytes() + (shape.backward && !adapter->trains() ? 3 * flat : 0);
  }
  plan.items.push_back({"adapters", adapters});
  if (shape.train_base) {
    int64_t floats = 4 * weights.num_parameters();  // masters, gradients, two moments
    if (engine.config().tie_word_embeddings)
      floats += engine.config().vocab_size * engine.config().hidden_size;
    plan.items.push_back({"base training", floats * dtype_bytes(DType::kF32)});
  }
  plan.items.push_back({"pass", plan_pass_bytes(engine, shape)});
  const int64_t position = engine.config().num_layers * engine.config().cache_width() *
                           dtype_bytes(weights.compute_dtype());
  plan.items.push_back({"kv cache", shape.kv_positions * position});
  plan.items.push_back({"process", kProcessBytes});
  return plan;
}

}  // namespace strata::engine
