#include "apps/bench_count.h"

namespace strata::apps {
namespace {

double head_weights(const model::ModelConfig& c) {
  return static_cast<double>(c.vocab_size) * static_cast<double>(c.hidden_size);
}

// Forward of causal attention over one sequence: two products over half of S x S.
double attention_flops(const model::ModelConfig& c, int64_t length) {
  const auto s = static_cast<double>(length);
  return 4.0 * static_cast<double>(c.num_layers * c.q_width()) * s * s / 2.0;
}

}  // namespace

int64_t layer_weights(const model::ModelConfig& c) {
  const int64_t attention = c.hidden_size * (2 * c.q_width() + 2 * c.kv_width());
  return c.num_layers * (attention + 3 * c.hidden_size * c.intermediate_size);
}

int64_t lora_weights(const model::ModelConfig& c, int64_t rank) {
  const int64_t attention = 2 * (c.hidden_size + c.q_width()) + 2 * (c.hidden_size + c.kv_width());
  return c.num_layers * rank * (attention + 3 * (c.hidden_size + c.intermediate_size));
}

WorkCount count_train(const model::ModelConfig& c, const TrainShape& shape) {
  const auto tokens = static_cast<double>(shape.sequences * shape.length);
  const double forwards = shape.recompute ? 2.0 : 1.0;
  const double layers = 2.0 * static_cast<double>(layer_weights(c)) * (forwards + 1.0);
  const double head = 2.0 * head_weights(c) * 2.0;
  const double lora = 2.0 * static_cast<double>(lora_weights(c, shape.rank)) * (forwards + 2.0);
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
  const double weights = static_cast<double>(layer_weights(c)) + head_weights(c);
  const auto adapters =
      static_cast<double>(lora_weights(c, rank)) * static_cast<double>(num_adapters);
  const double cache = 2.0 * static_cast<double>(c.num_layers * c.kv_width() * context * batch);
  const double attention = 4.0 * static_cast<double>(c.num_layers * c.q_width() * context * batch);
  const double adapter_flops =
      num_adapters > 0 ? 2.0 * static_cast<double>(lora_weights(c, rank) * batch) : 0.0;
  return {.flops = 2.0 * weights * static_cast<double>(batch) + attention + adapter_flops,
          .bytes = static_cast<double>(element_bytes) * (weights + adapters + cache)};
}

}  // namespace strata::apps
