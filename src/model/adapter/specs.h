// SPDX-License-Identifier: Apache-2.0
// Which modules a fresh adapter has, and their ranks. Any thread.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "base/function_ref.h"
#include "model/adapter/lora.h"

namespace strata::model {

// The rank of routed experts in a fresh adapter of rank r: max(1, r / E), so that all experts
// together cost what one module does, or r.
enum class ExpertRank { kDivided, kFull };
ExpertRank parse_expert_rank(std::string_view text);  // "divided" or "full", or Error
int64_t routed_expert_rank(int64_t num_experts, int64_t rank, ExpertRank expert_rank);

// The modules of a fresh adapter: those targets that `wanted` chooses, those before the layers
// first and the head last. Throws Error for rank < 1, alpha not finite, or no module.
std::vector<LoraModuleSpec> make_adapter_specs(
    const LayerTable& layers, FunctionRef<bool(const LoraTarget&, int layer)> wanted, int64_t rank,
    double alpha, ExpertRank expert_rank);

// Whether a fresh adapter has the modules of indexers, which no loss but their own trains.
enum class WithIndexers : bool { kNo, kYes };

// Specs of the modules of these names: `targets` are module names ("q_proj", ..., "embed_tokens",
// "lm_head"), also of shared and routed experts; "all-linear" is every projection. An unknown name
// is an Error that lists those of the model.
std::vector<LoraModuleSpec> make_adapter_specs(const ModelConfig& config,
                                               const std::vector<std::string>& targets,
                                               int64_t rank, double alpha,
                                               ExpertRank expert_rank = ExpertRank::kDivided,
                                               WithIndexers with_indexers = WithIndexers::kNo);

}  // namespace strata::model
