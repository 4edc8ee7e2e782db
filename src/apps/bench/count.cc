// SPDX-License-Identifier: Apache-2.0
#include "apps/bench/count.h"

#include <algorithm>

namespace strata::apps {
namespace {

double head_weights(const model::ModelConfig& c) {
  return static_cast<double>(c.vocab_size) * static_cast<double>(c.hidden_size);
}

// Calls body(row) for every parameter and adapter target of every layer.
template <typename Body>
void for_each_row(const model::ModelConfig& c, Body body) {
  const model::LayerTable table(c);
  for (const model::LayerStack& stack : table.stacks()) {
    for (const model::SublayerRows& rows : stack.rows) {
      for (const model::ParamRows* part : {&rows.outer, &rows.inner}) {
        for (const model::ParamRow& row : *part) body(row, stack.size());
      }
    }
  }
}

// Calls body(work) for the block of every sublayer.
template <typename Body>
void for_each_block(const model::ModelConfig& c, Body body) {
  for (const model::LayerConfig& layer : c.layers) {
    for (const model::Sublayer& sublayer : layer) {
      body(sublayer.block.ops().work(sublayer.block.config()));
    }
  }
}

// Keys that the queries of one causal sequence see together, each at most `window` of them.
double num_pairs(int64_t length, int64_t window) {
  const auto s = static_cast<double>(length);
  if (window == 0 || window >= length) return s * s / 2.0;
  const auto w = static_cast<double>(window);
  return w * w / 2.0 + (s - w) * w;
}

// Forward of attention over one sequence: scores and values of all layers.
double attention_flops(const model::ModelConfig& c, int64_t length) {
  double flops = 0.0;
  for_each_block(c, [&](const model::BlockWork& work) {
    flops += work.pair_flops * num_pairs(length, work.window);
    for (const model::WindowWork& keys : work.windows) {
      if (keys.window > 0) flops += keys.pair_flops * num_pairs(length, keys.window);
    }
  });
  return flops;
}

// Of the loss that trains indexers (ops/indexer_loss.h), over one sequence: a listing block attends
// to the entries of its second window, and scores every one. The loss has the scores of attention
// to all of them, without values, and those of the indexer with two gradients.
double indexer_loss_flops(const model::ModelConfig& c, int64_t length) {
  double flops = 0.0;
  for_each_block(c, [&](const model::BlockWork& work) {
    const model::WindowWork& listed = work.windows[1];
    if (listed.window == 0) return;
    flops += (listed.pair_flops / 2.0 + 3.0 * work.pair_flops) * num_pairs(length, 0);
  });
  return flops;
}

// Forward of what connectors do for every token.
double connector_flops(const model::ModelConfig& c) {
  double flops = 0.0;
  for (const model::LayerConfig& layer : c.layers) {
    for (const model::Sublayer& sublayer : layer) {
      const model::Connector& connector = sublayer.connector;
      flops += connector.ops().token_flops(connector.config(), c.hidden_size);
    }
  }
  return flops;
}

// Forward of what is done for every token, and its backward.
double token_flops(const model::ModelConfig& c) {
  double flops = connector_flops(c);
  for_each_block(c, [&](const model::BlockWork& work) { flops += work.token_flops; });
  return flops;
}

double token_backward_flops(const model::ModelConfig& c) {
  double flops = 2.0 * connector_flops(c);
  for_each_block(c, [&](const model::BlockWork& work) { flops += work.token_backward_flops; });
  return flops;
}

// Experts that one token uses of the target's.
int64_t num_active(const model::LayerTable& table, const model::LoraModuleSpec& spec) {
  const model::LayerStack& stack = table.stack_of(spec.layer);
  for (size_t s = 0; s < stack.rows.size(); ++s) {
    for (const model::ParamRow& row : stack.rows[s].inner) {
      if (stack.target_of[s][static_cast<size_t>(row.key)] == spec.target) return row.num_active;
    }
  }
  return 1;
}

}  // namespace

double absorbed_attention_ratio(const model::ModelConfig& c) {
  double asked = 0.0, executed = 0.0;
  for_each_block(c, [&](const model::BlockWork& work) {
    asked += work.pair_flops;
    executed += work.executed_pair_flops;
  });
  return asked == 0.0 ? 1.0 : executed / asked;
}

int64_t layer_weights(const model::ModelConfig& c, int64_t batch) {
  int64_t weights = 0;
  for_each_row(c, [&](const model::ParamRow& row, int64_t layers) {
    if (!row.is_matrix()) return;
    const int64_t copies =
        row.num_experts == 0 ? 1 : std::min(row.num_experts, row.num_active * batch);
    weights += layers * copies * row.shape.num_elements();
  });
  return weights;
}

int64_t lora_weights(const model::ModelConfig& c, int64_t rank, model::ExpertRank expert_rank) {
  int64_t weights = 0;
  for_each_row(c, [&](const model::ParamRow& row, int64_t layers) {
    if (row.lora.path.empty() || !row.lora.is_fresh) return;
    const int64_t ranks =
        row.num_experts == 0
            ? rank
            : row.num_active * model::routed_expert_rank(row.num_experts, rank, expert_rank);
    weights += layers * ranks * (row.shape[0] + row.shape[1]);
  });
  return weights;
}

int64_t lora_weights(const model::ModelConfig& c, std::span<const model::LoraModuleSpec> modules) {
  const model::LayerTable table(c);
  int64_t weights = 0;
  for (const model::LoraModuleSpec& spec : modules) {
    const model::LoraTarget& target = table.targets(spec.layer)[static_cast<size_t>(spec.target)];
    const int64_t experts = target.num_experts == 0 ? 1 : num_active(table, spec);
    const bool is_gathered = spec.layer < 0 && spec.target == model::kEmbedding;
    weights += experts * spec.rank * (target.out + (is_gathered ? 0 : target.in));
  }
  return weights;
}

double count_step_flops(const model::ModelConfig& c, std::span<const int64_t> lengths,
                        std::span<const model::LoraModuleSpec> modules, bool indexer_loss) {
  double tokens = 0.0, attention = 0.0, indexers = 0.0;
  for (const int64_t length : lengths) {
    tokens += static_cast<double>(length);
    attention += attention_flops(c, length);
    if (indexer_loss) indexers += indexer_loss_flops(c, length);
  }
  const double base = 2.0 * (static_cast<double>(layer_weights(c)) + head_weights(c)) *
                      (modules.empty() ? 3.0 : 2.0);
  const double lora = 2.0 * static_cast<double>(lora_weights(c, modules)) * 3.0;
  const double rules = token_flops(c) + token_backward_flops(c);
  return tokens * (base + lora + rules) + attention * 3.5 + indexers;
}

WorkCount count_train(const model::ModelConfig& c, const TrainShape& shape) {
  const auto tokens = static_cast<double>(shape.sequences * shape.length);
  const double forwards = shape.recompute ? 2.0 : 1.0;
  const double layers = 2.0 * static_cast<double>(layer_weights(c)) * (forwards + 1.0);
  const double head = 2.0 * head_weights(c) * 2.0;
  const double lora =
      2.0 * static_cast<double>(lora_weights(c, shape.rank, model::ExpertRank::kDivided)) *
      (forwards + 2.0);
  const double attention =
      attention_flops(c, shape.length) * static_cast<double>(shape.sequences) * (forwards + 2.5);
  const double rules = token_flops(c) * forwards + token_backward_flops(c);
  return {.flops = tokens * (layers + head + lora + rules) + attention, .bytes = 0.0};
}

WorkCount count_prefill(const model::ModelConfig& c, int64_t length) {
  const double layers = 2.0 * static_cast<double>(layer_weights(c)) * static_cast<double>(length);
  const double rules = token_flops(c) * static_cast<double>(length);
  return {.flops = layers + 2.0 * head_weights(c) + attention_flops(c, length) + rules,
          .bytes = 0.0};
}

WorkCount count_decode(const model::ModelConfig& c, int64_t batch, int64_t context, DType dtype,
                       int64_t num_adapters, int64_t rank, double weight_bytes) {
  const double read = static_cast<double>(layer_weights(c, batch)) + head_weights(c);
  const double used = static_cast<double>(layer_weights(c)) + head_weights(c);
  const auto of_adapter = static_cast<double>(lora_weights(c, rank, model::ExpertRank::kFull));
  const double adapters = of_adapter * static_cast<double>(num_adapters);
  double cache = 0.0, attention = 0.0;
  for (const model::LayerConfig& layer : c.layers) {
    for (const model::Sublayer& sublayer : layer) {
      const model::CacheSpec spec = sublayer.block.ops().cache(sublayer.block.config(), dtype);
      const model::BlockWork work = sublayer.block.ops().work(sublayer.block.config());
      const auto seen =
          static_cast<double>(work.window == 0 ? context : std::min(work.window, context));
      cache += static_cast<double>(spec.entry_bytes) / static_cast<double>(spec.ratio) * seen;
      cache += static_cast<double>(spec.sequence_bytes);
      attention += work.pair_flops * seen + work.token_flops;
      for (const model::WindowWork& keys : work.windows)
        attention += keys.pair_flops * static_cast<double>(std::min(keys.window, context));
    }
  }
  const auto sequences = static_cast<double>(batch);
  const auto element = static_cast<double>(dtype_bytes(dtype));
  const double adapter_flops = num_adapters > 0 ? 2.0 * of_adapter * sequences : 0.0;
  return {.flops = 2.0 * used * sequences + attention * sequences + adapter_flops,
          .bytes = (weight_bytes > 0 ? weight_bytes : element) * read + element * adapters +
                   cache * sequences};
}

}  // namespace strata::apps
