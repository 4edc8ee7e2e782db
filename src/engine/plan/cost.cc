// SPDX-License-Identifier: Apache-2.0
#include "engine/plan/cost.h"

#include <algorithm>

#include "engine/plan/recompute_plan.h"
#include "model/adapter/specs.h"

namespace strata::engine {
namespace {

// What products and attention reach of the limit, which is probed in registers (docs/dev/log).
constexpr double kProductShare = 0.85;
// What an exponential of attention costs besides products: with its maximum, sums and roundings, of
// f32's operations (a fused one counts twice); in backward it is recomputed and has a gradient.
constexpr double kExponentialFlops = 33.0;
constexpr double kBackwardExponentials = 3.5;
// For products with few rows: what share of the limit reads of weights reach, and how much of the
// shorter one of reading and computing the longer one does not hide (docs/dev/log).
constexpr double kReadShare = 0.9;
constexpr double kCacheReadShare = 0.6;  // of caches, which lie head by head
constexpr double kNotHidden = 0.5;
// How often a value is written or read between products: an activation once each in forward, and in
// backward with its gradient; a logit; and what AdamW goes through for a parameter.
constexpr double kActivationMoves = 5.0;
constexpr double kLogitMoves = 5.0;
constexpr double kAdamWMoves = 7.0;
// Moves of a logit of decoding: written, read for the sum and for the choice.
constexpr double kDecodeLogitMoves = 3.0;

double num_head_weights(const model::ModelConfig& c) {
  return static_cast<double>(c.vocab_size) * static_cast<double>(c.hidden_size);
}

// Multi-token prediction has logits of its own.
double num_heads(const model::ModelConfig& c) { return c.use_mtp ? 2.0 : 1.0; }

// Calls body(sublayer) for every one of all layers, that of multi-token prediction among them.
template <typename Body>
void for_each_sublayer(const model::ModelConfig& c, Body body) {
  for (const model::LayerConfig& layer : c.layers) {
    for (const model::Sublayer& sublayer : layer) body(sublayer);
  }
  if (!c.use_mtp) return;
  for (const model::Sublayer& sublayer : *c.mtp_layer) body(sublayer);
}

// Calls body(row, layers) for every parameter and adapter target of every stack of `layers` equal
// layers.
template <typename Body>
void for_each_param_row(const model::ModelConfig& c, Body body) {
  const model::LayerTable table(c);
  for (const model::LayerStack& stack : table.stacks()) {
    for (const model::SublayerRows& rows : stack.rows) {
      for (const model::ParamRows* part : {&rows.outer, &rows.inner}) {
        for (const model::ParamRow& row : *part) body(row, stack.size());
      }
    }
  }
  for (const model::ParamRow& row : table.per_layer_rows()) {
    if (row.key != model::kPerLayerEmbedding) body(row, 1);
  }
}

// Calls body(work) for the block of every sublayer.
template <typename Body>
void for_each_block_work(const model::ModelConfig& c, Body body) {
  for_each_sublayer(c, [&](const model::Sublayer& sublayer) {
    body(sublayer.block.ops().work(sublayer.block.config()));
  });
}

// Forward of attention over one sequence: scores and values of all layers, and exponentials.
Work attention_work(const model::ModelConfig& c, int64_t length) {
  Work sum;
  const auto add = [&](const auto& keys, bool in_chunks) {
    const double pairs = model::num_query_key_pairs(0, length, keys.window, in_chunks);
    sum.flops += keys.pair_flops * pairs;
    sum.exponentials += keys.pair_exponentials * pairs;
  };
  for_each_block_work(c, [&](const model::BlockWork& work) {
    add(work, work.in_chunks);
    for (const model::WindowWork& keys : work.windows) {
      if (keys.window > 0) add(keys, false);
    }
  });
  return sum;
}

// The loss that trains indexers (ops/indexer_loss.h), over one sequence: a listing block attends
// to the entries of its second window, and scores every one. The loss has the scores of attention
// to all of them, without values, and those of the indexer with two gradients.
double indexer_loss_flops(const model::ModelConfig& c, int64_t length) {
  double flops = 0.0;
  for_each_block_work(c, [&](const model::BlockWork& work) {
    const model::WindowWork& listed = work.windows[1];
    if (listed.window == 0) return;
    flops += (listed.pair_flops / 2.0 + 3.0 * work.pair_flops) *
             model::num_query_key_pairs(0, length, 0);
  });
  return flops;
}

// Forward of what connectors do for every token.
double connector_flops(const model::ModelConfig& c) {
  double flops = 0.0;
  for_each_sublayer(c, [&](const model::Sublayer& sublayer) {
    const model::Connector& connector = sublayer.connector;
    flops += connector.ops().token_flops(connector.config(), c.hidden_size);
  });
  return flops;
}

// What connectors move for every token, forward and backward.
double connector_bytes(const model::ModelConfig& c, DType dtype) {
  double bytes = 0.0;
  for_each_sublayer(c, [&](const model::Sublayer& sublayer) {
    const model::Connector& connector = sublayer.connector;
    bytes += connector.ops().token_bytes(connector.config(), c.hidden_size, dtype_bytes(dtype));
  });
  return bytes;
}

// Forward of what is done for every token, and its backward.
double token_flops(const model::ModelConfig& c) {
  double flops = connector_flops(c);
  for_each_block_work(c, [&](const model::BlockWork& work) { flops += work.token_flops; });
  return flops;
}

double token_backward_flops(const model::ModelConfig& c) {
  double flops = 2.0 * connector_flops(c);
  for_each_block_work(c, [&](const model::BlockWork& work) { flops += work.token_backward_flops; });
  return flops;
}

// Experts that one token uses of the target's.
int64_t num_active_experts(const model::LayerTable& table, const model::LoraModuleSpec& spec) {
  const model::LayerStack& stack = table.stack_of(spec.layer);
  for (size_t s = 0; s < stack.rows.size(); ++s) {
    for (const model::ParamRow& row : stack.rows[s].inner) {
      if (stack.target_of[s][static_cast<size_t>(row.key)] == spec.target) return row.num_active;
    }
  }
  return 1;
}

// Values of the adapter, or of all parameters, that a step moves.
double num_trained_values(const model::ModelWeights& weights,
                          std::span<const model::LoraModuleSpec> modules) {
  if (modules.empty()) return static_cast<double>(weights.num_parameters());
  double values = 0.0;
  for (const model::LoraModuleSpec& spec : modules) {
    const model::LoraTarget& target =
        weights.layers().targets(spec.layer)[static_cast<size_t>(spec.target)];
    values += static_cast<double>(std::max<int64_t>(1, target.num_experts) * spec.rank *
                                  (target.in + target.out));
  }
  return values;
}

double num_tokens(const StepShape& shape) {
  double tokens = 0.0;
  for (const int64_t length : shape.lengths) tokens += static_cast<double>(length);
  return tokens;
}

// Bytes that move for the activations of one pass.
double moved_activation_bytes(const RecomputePlan& kept) {
  double bytes = kept.again_bytes;
  for (const RecomputePlan::Row& row : kept.rows) {
    bytes += kActivationMoves * static_cast<double>(row.layer_bytes) *
             static_cast<double>(row.layers.size());
  }
  return bytes;
}

// Forward and backward to what trains, but what moves for it.
Work forward_backward_work(const model::ModelConfig& c, const StepShape& shape) {
  const double tokens = num_tokens(shape);
  Work attention;
  double indexers = 0.0;
  for (const int64_t length : shape.lengths) {
    attention = attention + attention_work(c, length);
    if (shape.indexer_loss) indexers += indexer_loss_flops(c, length);
  }
  const double head = num_head_weights(c) * num_heads(c) * shape.scored;
  const double base = 2.0 * (static_cast<double>(num_layer_weights(c)) + head) *
                      (shape.modules.empty() ? 3.0 : 2.0);
  const double lora = 2.0 * static_cast<double>(num_lora_weights(c, shape.modules)) * 3.0;
  const double rules = token_flops(c) + token_backward_flops(c);
  return {.flops = tokens * (base + lora + rules) + attention.flops * 3.5 + indexers,
          .f32_flops = tokens * rules,
          .exponentials = (1.0 + kBackwardExponentials) * attention.exponentials};
}

// Decoding of one sequence, but for the products with weights: what it reads of its cache, and
// floating-point operations of attention and of what is done for every token.
struct SequenceDecode {
  double cache_bytes = 0.0, attention_flops = 0.0, rule_flops = 0.0;
};

SequenceDecode sequence_decode_work(const model::ModelConfig& c, const DecodeShape& shape) {
  SequenceDecode sum;
  for_each_sublayer(c, [&](const model::Sublayer& sublayer) {
    const model::CacheSpec spec =
        sublayer.block.ops().cache_spec(sublayer.block.config(), shape.dtype);
    const model::BlockWork work = sublayer.block.ops().work(sublayer.block.config());
    const auto seen = static_cast<double>(work.window == 0 ? shape.context
                                                           : std::min(work.window, shape.context));
    sum.cache_bytes +=
        static_cast<double>(spec.entry_bytes) / static_cast<double>(spec.ratio) * seen;
    sum.cache_bytes += static_cast<double>(spec.sequence_bytes);
    sum.attention_flops += work.pair_flops * seen;
    sum.rule_flops += work.token_flops;
    for (const model::WindowWork& keys : work.windows) {
      sum.attention_flops +=
          keys.pair_flops * static_cast<double>(std::min(keys.window, shape.context));
    }
  });
  return sum;
}

double compute_seconds(const Work& work, const MachineLimits& limits) {
  const double products = work.flops - work.f32_flops;
  const double in_f32 = work.f32_flops + kExponentialFlops * work.exponentials;
  return (products / limits.flops + in_f32 / limits.f32_flops) / kProductShare;
}

}  // namespace

double seconds_of(const Work& work, const MachineLimits& limits) {
  return compute_seconds(work, limits) + work.bytes / limits.bytes +
         work.file_bytes / limits.file_bytes;
}

double decode_seconds(const Work& work, const MachineLimits& limits) {
  const double computes = compute_seconds(work, limits);
  const double reads =
      ((work.bytes - work.cache_bytes) / kReadShare + work.cache_bytes / kCacheReadShare) /
      limits.bytes;
  return std::max(computes, reads) + kNotHidden * std::min(computes, reads);
}

Price price_of(const MachineLimits& limits) {
  const double flops = kProductShare * limits.flops;
  return {.byte = flops / limits.bytes, .file_byte = flops / limits.file_bytes};
}

double absorbed_attention_ratio(const model::ModelConfig& c) {
  double asked = 0.0, executed = 0.0;
  for_each_block_work(c, [&](const model::BlockWork& work) {
    asked += work.pair_flops;
    executed += work.executed_pair_flops;
  });
  return asked == 0.0 ? 1.0 : executed / asked;
}

int64_t num_layer_weights(const model::ModelConfig& c, int64_t batch) {
  int64_t weights = 0;
  for_each_param_row(c, [&](const model::ParamRow& row, int64_t layers) {
    if (!row.is_matrix()) return;
    const int64_t copies =
        row.num_experts == 0 ? 1 : std::min(row.num_experts, row.num_active * batch);
    weights += layers * copies * row.shape.num_elements();
  });
  return weights;
}

int64_t num_expert_weights(const model::ModelConfig& c) {
  int64_t weights = 0;
  for_each_param_row(c, [&](const model::ParamRow& row, int64_t layers) {
    if (row.is_matrix() && row.num_experts > 0)
      weights += layers * row.num_active * row.shape.num_elements();
  });
  return weights;
}

int64_t num_lora_weights(const model::ModelConfig& c,
                         std::span<const model::LoraModuleSpec> modules) {
  const model::LayerTable table(c);
  int64_t weights = 0;
  for (const model::LoraModuleSpec& spec : modules) {
    const model::LoraTarget& target = table.targets(spec.layer)[static_cast<size_t>(spec.target)];
    const int64_t experts = target.num_experts == 0 ? 1 : num_active_experts(table, spec);
    const bool is_gathered = spec.layer < 0 && spec.target == model::kEmbedding;
    weights += experts * spec.rank * (target.out + (is_gathered ? 0 : target.in));
  }
  return weights;
}

double step_flops(const model::ModelConfig& c, const StepShape& shape) {
  return forward_backward_work(c, shape).flops;
}

double forward_flops(const model::ModelConfig& c, const StepShape& shape) {
  double attention = 0.0;
  for (const int64_t length : shape.lengths) attention += attention_work(c, length).flops;
  const auto weights =
      static_cast<double>(num_layer_weights(c) + num_lora_weights(c, shape.modules));
  return num_tokens(shape) * (2.0 * weights + token_flops(c)) + attention;
}

Work step_work(const model::ModelWeights& weights, const StepShape& shape, const StepPasses& passes,
               const RecomputePlan& kept) {
  const model::ModelConfig& config = weights.config();
  const double full_passes = passes.tokens / static_cast<double>(passes.pass_tokens);
  const auto weight_bytes = static_cast<double>(weights.num_bytes());
  constexpr auto kFloat = static_cast<double>(dtype_bytes(DType::kF32));
  const double trained = num_trained_values(weights, shape.modules);
  Work work;
  const Work step = forward_backward_work(config, shape);
  work.flops = step.flops * passes.tokens / num_tokens(shape) + kept.flops * full_passes;
  work.f32_flops = step.f32_flops * passes.tokens / num_tokens(shape);
  work.exponentials = step.exponentials * passes.tokens / num_tokens(shape);
  work.bytes = moved_activation_bytes(kept) * full_passes;
  work.bytes += passes.tokens * connector_bytes(config, weights.compute_dtype());
  work.bytes += kWeightReads * weight_bytes * passes.number;
  work.bytes += kLogitMoves * kFloat * passes.tokens * shape.scored * num_heads(config) *
                static_cast<double>(config.vocab_size);
  if (shape.modules.empty()) work.bytes += 2.0 * kFloat * trained * passes.number;  // gradients
  work.bytes += kAdamWMoves * kFloat * trained;
  work.file_bytes = kFileMoves * static_cast<double>(kept.file_bytes) * full_passes;
  if (passes.weights_in_files) work.file_bytes += kFileReads * weight_bytes * passes.number;
  return work;
}

Work prefill_work(const model::ModelConfig& c, int64_t length) {
  const int64_t lengths[] = {length};
  return {.flops = forward_flops(c, {.lengths = lengths}) + 2.0 * num_head_weights(c),
          .f32_flops = static_cast<double>(length) * token_flops(c),
          .exponentials = attention_work(c, length).exponentials};
}

Work decode_work(const model::ModelConfig& c, const DecodeShape& shape) {
  const double read = static_cast<double>(num_layer_weights(c, shape.batch)) + num_head_weights(c);
  const double used = static_cast<double>(num_layer_weights(c)) + num_head_weights(c);
  const auto of_adapter = static_cast<double>(num_lora_weights(c, shape.modules));
  const double adapters = of_adapter * static_cast<double>(shape.num_adapters);
  const auto [cache, attention, rules] = sequence_decode_work(c, shape);
  const auto sequences = static_cast<double>(shape.batch);
  const auto element = static_cast<double>(dtype_bytes(shape.dtype));
  const double adapter_flops = shape.num_adapters > 0 ? 2.0 * of_adapter * sequences : 0.0;
  const double logits = sequences * static_cast<double>(c.vocab_size);
  constexpr auto kFloat = static_cast<double>(dtype_bytes(DType::kF32));
  return {.flops = (2.0 * used + attention + rules) * sequences + adapter_flops,
          .f32_flops = rules * sequences,
          .exponentials = logits,
          .bytes = (shape.weight_bytes > 0 ? shape.weight_bytes : element) * read +
                   element * adapters + cache * sequences + kDecodeLogitMoves * kFloat * logits,
          .cache_bytes = cache * sequences};
}

LayerCosts layer_costs(const model::ModelConfig& config) {
  constexpr int64_t kUsualLength[] = {512};
  constexpr int64_t kUsualRank = 32;
  model::ModelConfig part = config;
  part.use_mtp = false;
  const auto cost_with = [&](std::vector<model::LayerConfig> layers) {
    part.layers = std::move(layers);
    const auto modules = model::make_adapter_specs(part, {"all-linear"}, kUsualRank, 1.0);
    // The head is frozen, whatever the layers have of an adapter.
    return step_flops(part, {.lengths = kUsualLength, .modules = modules});
  };
  const double head = 4.0 * num_head_weights(config) * static_cast<double>(kUsualLength[0]);
  LayerCosts costs = {.layers = {}, .head = head};
  for (const model::LayerConfig& layer : config.layers) {
    costs.layers.push_back(cost_with({layer}) - head);
  }
  if (config.use_mtp) costs.head += cost_with({*config.mtp_layer});
  return costs;
}

}  // namespace strata::engine
