// SPDX-License-Identifier: Apache-2.0
// Layers as DeepSeek-V3 has them, shared by the families that took them over: dense ones first,
// then experts behind a router, a sigmoid one unless they say otherwise, with shared ones.
#pragma once
#include "model/blocks/experts/moe.h"
#include "model/families/family.h"

namespace strata::model {

// Values of keys that a file leaves out.
struct DeepseekExpertDefaults {
  int64_t num_dense, num_experts, top_k, expert_width, num_groups, top_groups;
  double scale;
  int64_t num_shared = 1;
};

// The experts of a layer, with a sigmoid router.
MoeConfig read_deepseek_experts(const ConfigObject& object, const DeepseekExpertDefaults& defaults);
using ReadExperts = MoeConfig (*)(const ConfigObject& object,
                                  const DeepseekExpertDefaults& defaults);

// Appends the layers, each with this attention and its MLP or experts; and reads how many layers of
// multi-token prediction lie beyond them in a checkpoint.
void add_deepseek_layers(const ConfigObject& object, const DecoderKeys& keys,
                         const DeepseekExpertDefaults& defaults, const Block& attention,
                         ModelConfig& config, ReadExperts read_experts = read_deepseek_experts);

}  // namespace strata::model
