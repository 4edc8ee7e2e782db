// SPDX-License-Identifier: Apache-2.0
// Nominal work of a decoder, as speeds are counted against: what the mathematics asks for, whether
// or not it is executed (a recompute that skips something still counts whole). P layer weights, T
// tokens, S sequence length, L layers.
#pragma once
#include <span>

#include "model/adapter/io.h"

namespace strata::apps {

struct WorkCount {
  double flops = 0.0;
  double bytes = 0.0;  // read from memory at least once
};

struct TrainShape {
  int64_t sequences = 1;
  int64_t length = 512;
  int64_t rank = 32;  // routed experts have their share of it
  bool recompute = false;
};

// Matrices of all layers that one token uses; of experts the chosen ones. With a batch: that so
// many tokens read, if no two chose the same expert.
int64_t layer_weights(const model::ModelConfig& config, int64_t batch = 1);
// Of all projections and layers that one token uses.
int64_t lora_weights(const model::ModelConfig& config, int64_t rank, model::ExpertRank expert_rank);
// Of these modules.
int64_t lora_weights(const model::ModelConfig& config,
                     std::span<const model::LoraModuleSpec> modules);
// Latent attention: work of scores and values in latent space over that of expanded heads. Else 1.
double absorbed_attention_ratio(const model::ModelConfig& config);

// Forward, optional recompute, backward to activations and adapters: a LoRA step without weight
// gradients of the base.
WorkCount count_train(const model::ModelConfig& config, const TrainShape& shape);
// One optimizer step over sequences of these lengths: forward, and backward to what is trained,
// which is an adapter of these modules or, without any, every parameter; and of the loss that
// trains indexers, where there is one.
double count_step_flops(const model::ModelConfig& config, std::span<const int64_t> lengths,
                        std::span<const model::LoraModuleSpec> modules, bool indexer_loss);
// Logits of the last position only.
WorkCount count_prefill(const model::ModelConfig& config, int64_t length);
// One token of each of `batch` sequences, each with `context` positions in its own cache; dtype of
// weights and cache. num_adapters different adapters of this rank are read once
// each. weight_bytes: of a weight of the model, where those are not of the dtype.
WorkCount count_decode(const model::ModelConfig& config, int64_t batch, int64_t context,
                       DType dtype, int64_t num_adapters, int64_t rank, double weight_bytes = 0.0);

}  // namespace strata::apps
