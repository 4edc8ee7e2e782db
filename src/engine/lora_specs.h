// SPDX-License-Identifier: Apache-2.0
// Which modules an adapter has that a client asks for. Any thread.
#pragma once
#include <vector>

#include "api/command.h"
#include "model/adapter/specs.h"

namespace strata::engine {

// The modules that the train flags stand for, with the service's alpha of 32.
std::vector<model::LoraModuleSpec> lora_specs(
    const model::ModelConfig& config, const api::LoraConfig& lora,
    model::ExpertRank expert_rank = model::ExpertRank::kDivided);

}  // namespace strata::engine
