#include "engine/memory_plan.h"

#include <algorithm>

#include "model/head.h"
#include "model/mla_block.h"

namespace strata::engine {
namespace {

// Program text, libraries, thread stacks and small lists: measured, the same for every model.
constexpr int64_t kProcessBytes = 24 << 20;

// The widest moment inside a layer, beyond its kept activations.
int64_t layer_temporaries(const model::ModelConfig& c, DType dtype, int64_t tokens, int64_t rank,
                          bool backward) {
  const int64_t e = dtype_bytes(dtype);
  const int64_t normed = tokens * c.hidden_size * e;
  if (c.mla.kv_lora_rank > 0) {
    const int64_t mlp =
        backward ? tokens * c.intermediate_size * 4 * e + tokens * c.hidden_size * (e + 4)
                 : normed + tokens * c.intermediate_size * e;
    return std::max(mlp, model::mla_temporary_bytes(c, dtype, tokens, rank, backward));
  }
  if (!backward) {
    return normed +
           std::max(tokens * c.intermediate_size * e, tokens * (c.q_width() + c.kv_width()) * e);
  }
  const int64_t mlp = tokens * c.intermediate_size * 4 * e + tokens * c.hidden_size * (e + 4);
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
  int64_t layers = 0;  // all of them
  int64_t layer = 0;   // the largest
  for (const model::LayerStack& stack : engine.model().weights->layers().stacks()) {
    const int64_t one = model::activation_bytes(c, stack.kind, dtype, tokens, shape.rank);
    layers += stack.size() * one;
    layer = std::max(layer, one);
  }
  const int64_t boundary = tokens * c.hidden_size * e;
  int64_t bytes = boundary;  // final hidden
  const int64_t chunk = std::min(tokens, model::kHeadChunk);
  const int64_t head = chunk * (c.vocab_size * 4 + c.hidden_size * (e + 4));
  if (!shape.backward) {
    return bytes + 2 * boundary +
           std::max(head, layer + layer_temporaries(c, dtype, tokens, shape.rank, false));
  }
  const bool full = engine.options().recompute == model::Recompute::kFull;
  bytes += (c.num_layers + 1) * boundary + tokens * c.hidden_size * 4;
  const int64_t walk =
      layer_temporaries(c, dtype, tokens, shape.rank, true) + tokens * c.hidden_size * 4;
  return full ? bytes + std::max(head, layer + walk) : bytes + layers + std::max(head, walk);
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
    const int64_t compute = adapter->num_parameters() * dtype_bytes(weights.compute_dtype());
    const int64_t copies =
        shape.backward || adapter->trains() ? 4 : 1;  // masters; gradients and two moments
    adapters += adapter->num_parameters() * dtype_bytes(DType::kF32) * copies + compute;
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
