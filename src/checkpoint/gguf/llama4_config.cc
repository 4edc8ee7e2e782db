// SPDX-License-Identifier: Apache-2.0
// Source: llama.cpp's conversion/llama.py (Llama4Model) and src/models/llama4.cpp.
#include "checkpoint/gguf/llama4_config.h"

#include <fmt/format.h>

namespace strata {

void add_llama4_members(ConfigMembers& members) {
  constexpr int64_t kChunk = 8192, kRopeInterval = 4, kWithoutQkNorm = 128;
  constexpr double kAttentionScale = 0.1;
  const int64_t experts = members.read_integer("expert_count", 0);
  if (experts < 1) members.refuse("expert_count", "a model without experts is not supported");
  const int64_t step = members.read_integer("interleave_moe_layer_step");
  if (step < 1) {
    members.refuse("interleave_moe_layer_step", fmt::format("got {}, want at least 1", step));
  }
  // Where a file has this key, llama.cpp lets every layer attend to all.
  if (members.has_key("attention.sliding_window")) {
    members.refuse("attention.sliding_window",
                   "only the chunks of Llama 4, which no key says, are "
                   "supported");
  }
  members.set_integer("intermediate_size_mlp", members.read_integer("feed_forward_length"));
  members.set_integer("num_local_experts", experts);
  members.set_integer("num_experts_per_tok", members.read_integer("expert_used_count"));
  members.set_integer("interleave_moe_layer_step", step);
  members.set_boolean("use_qk_norm", experts != kWithoutQkNorm);
  members.set_integer("no_rope_layer_interval", kRopeInterval);
  members.set_integer("attention_chunk_size", kChunk);
  members.set_boolean("attn_temperature_tuning", true);
  members.set_integer("floor_scale", kChunk);
  members.set_number("attn_scale", kAttentionScale);
}

}  // namespace strata
