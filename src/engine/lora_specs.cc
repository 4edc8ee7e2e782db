// SPDX-License-Identifier: Apache-2.0
#include "engine/lora_specs.h"

namespace strata::engine {
namespace {

constexpr double kAlpha = 32.0;

}  // namespace

std::vector<model::LoraModuleSpec> lora_specs(const model::ModelConfig& config,
                                              const api::LoraConfig& lora,
                                              model::ExpertRank expert_rank) {
  const model::LayerTable layers(config);
  const auto wanted = [&](const model::LoraTarget& target, int layer) {
    if (layer < 0) return lora.train_unembed && target.path == "lm_head";
    if (layer == layers.mtp_layer()) return false;  // no loss of a client's reaches it
    if (!target.is_fresh) return false;
    return target.group == model::BlockGroup::kAttention ? lora.train_attn : lora.train_mlp;
  };
  return model::make_adapter_specs(layers, wanted, lora.rank, kAlpha, expert_rank);
}

}  // namespace strata::engine
