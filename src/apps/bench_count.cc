#include "apps/bench_count.h"

#include <algorithm>

#include "model/layer_params.h"
#include "model/lora.h"

namespace strata::apps {
namespace {

double head_weights(const model::ModelConfig& c) {
  return static_cast<double>(c.vocab_size) * static_cast<double>(c.hidden_size);
}

// Of one query and one key it sees, all heads of all layers: scores and values.
double pair_flops(const model::ModelConfig& c) {
  const int64_t widths =
      c.mla.kv_lora_rank > 0 ? c.num_heads * (c.head_dim + c.mla.value_dim) : 2 * c.q_width();
  return 2.0 * static_cast<double>(c.num_layers * widths);
}

// Forward of causal attention over one sequence: two products over half of S x S.
double attention_flops(const model::ModelConfig& c, int64_t length) {
  const auto s = static_cast<double>(length);
  return pair_flops(c) * s * s / 2.0;
}

}  // namespace

double absorbed_attention_ratio(const model::ModelConfig& c) {
  if (c.mla.kv_lora_rank == 0) return 1.0;
  return static_cast<double>(2 * c.mla.kv_lora_rank + c.mla.rope_dim) /
         static_cast<double>(c.head_dim + c.mla.value_dim);
}

int64_t layer_weights(const model::ModelConfig& c, int64_t batch) {
  int64_t weights = 0;
  for (int64_t layer = 0; layer < c.num_layers; ++layer) {
    for (const model::LayerParamSpec& spec : model::layer_params(c, c.layer_kind(layer))) {
      if (spec.shape.rank() != 2) continue;
      const int64_t copies =
          spec.num_experts == 0 ? 1 : std::min(spec.num_experts, c.moe.top_k * batch);
      weights += copies * spec.shape.num_elements();
    }
  }
  return weights;
}

int64_t lora_weights(const model::ModelConfig& c, int64_t rank, int64_t expert_rank) {
  int64_t weights = 0;
  for (int64_t layer = 0; layer < c.num_layers; ++layer) {
    for (int p = 0; p < model::kNumProjections; ++p) {
      const auto projection = static_cast<model::Projection>(p);
      if (projection == model::Projection::kExpertGateUp) continue;
      const auto [in, out] = model::projection_widths(c, c.layer_kind(layer), projection);
      weights += (model::is_expert(projection) ? c.moe.top_k * expert_rank : rank) * (in + out);
    }
  }
  return weights;
}

WorkCount count_train(const model::ModelConfig& c, const TrainShape& shape) {
  const auto tokens = static_cast<double>(shape.sequences * shape.length);
  const double forwards = shape.recompute ? 2.0 : 1.0;
  const double layers = 2.0 * static_cast<double>(layer_weights(c)) * (forwards + 1.0);
  const double head = 2.0 * head_weights(c) * 2.0;
  const double lora =
      2.0 * static_cast<double>(lora_weights(c, shape.rank, shape.expert_rank)) * (forwards + 2.0);
  const double attention =
      attention_flops(c, shape.length) * static_cast<double>(shape.sequences) * (forwards + 2.5);
  return {.flops = tokens * (layers + head + lora) + attention, .bytes = 0.0};
}

WorkCount count_prefill(const model::ModelConfig& c, int64_t length) {
  const double layers = 2.0 * static_cast<double>(layer_weights(c)) * static_cast<double>(length);
  return {.flops = layers + 2.0 * head_weights(c) + attention_flops(c, length), .bytes = 0.0};
}

WorkCount count_decode(const model::ModelConfig& c, int64_t batch, int64_t context,
                       int64_t element_bytes, int64_t num_adapters, int64_t rank) {
  const double read = static_cast<double>(layer_weights(c, batch)) + head_weights(c);
  const double used = static_cast<double>(layer_weights(c)) + head_weights(c);
  const auto of_adapter = static_cast<double>(lora_weights(c, rank, rank));
  const double adapters = of_adapter * static_cast<double>(num_adapters);
  const auto cache = static_cast<double>(c.num_layers * c.cache_width() * context * batch);
  const double attention = pair_flops(c) * static_cast<double>(context * batch);
  const double adapter_flops =
      num_adapters > 0 ? 2.0 * of_adapter * static_cast<double>(batch) : 0.0;
  return {.flops = 2.0 * used * static_cast<double>(batch) + attention + adapter_flops,
          .bytes = static_cast<double>(element_bytes) * (read + adapters + cache)};
}

}  // namespace strata::apps
