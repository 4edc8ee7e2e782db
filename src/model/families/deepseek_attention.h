// SPDX-License-Identifier: Apache-2.0
// Latent attention as DeepSeek-V2 and V3 have it, shared by the families that took it over.
#pragma once
#include "model/families/family.h"

namespace strata::model {

// Values of keys that a file leaves out.
struct DeepseekAttentionDefaults {
  int64_t q_lora_rank, nope_dim, value_dim;
};

// The block; its rotary table is added to the config's.
Block read_deepseek_attention(const ConfigObject& object, const DeepseekAttentionDefaults& defaults,
                              const DecoderKeys& keys, ModelConfig& config);

}  // namespace strata::model
