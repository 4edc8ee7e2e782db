// SPDX-License-Identifier: Apache-2.0
// GLM-4-0414 and GLM-Z1: norms before and behind each branch, pairs of neighbours in half of each
// head, gate and up in one matrix. Sources: HF modeling_glm4.py, configuration_glm4.py, as all
// defaults here.
#include "model/blocks/attention_config.h"
#include "model/blocks/gated_mlp.h"
#include "model/blocks/gqa.h"
#include "model/connectors/post_norm_add.h"
#include "model/families/family.h"

namespace strata::model {
namespace {

constexpr std::string_view kArchitectures[] = {"Glm4ForCausalLM"};
constexpr std::string_view kTypes[] = {"glm4"};

void read_glm4(const ConfigObject& object, const DecoderKeys& keys, ModelConfig& config) {
  const int64_t head_dim = object.integer("head_dim", 128);
  const RopeConfig rope = read_rope(object, {.partial_rotary_factor = 0.5, .is_partial = true});
  const int64_t rotary_dim = rotary_width(rope, head_dim);
  const Block attention(kGqa, GqaConfig{.num_heads = keys.num_heads,
                                        .num_kv_heads = object.integer("num_key_value_heads", 2),
                                        .head_dim = head_dim,
                                        .scale = plain_attention_scale(head_dim),
                                        .qkv_bias = object.boolean("attention_bias", true),
                                        .rope = config.ensure_rope({rope, rotary_dim}),
                                        .rotary_dim = rotary_dim,
                                        .rope_interleave = true});
  const Block mlp(kGatedMlp,
                  GatedMlpConfig{.width = keys.intermediate_size, .fused_gate_up = true});
  const auto norms = [&](std::string_view before, std::string_view after) {
    return Connector(
        kPostNormAdd,
        PostNormAddConfig{.before = before, .after = after, .eps = config.rms_norm_eps});
  };
  // What Llama calls the norm behind the attention is the one before the MLP, here too.
  config.layers.assign(
      static_cast<size_t>(keys.num_layers),
      {{norms("input_layernorm.weight", "post_self_attn_layernorm.weight"), attention},
       {norms("post_attention_layernorm.weight", "post_mlp_layernorm.weight"), mlp}});
  config.stores_as_one = true;
}

}  // namespace

extern const Family kGlm4Family = {.name = "glm4",
                                   .architectures = kArchitectures,
                                   .model_types = kTypes,
                                   .read_keys = {},
                                   .inert_keys = {},
                                   .defaults = {.vocab_size = 151552,
                                                .hidden_size = 4096,
                                                .intermediate_size = 13696,
                                                .num_layers = 40,
                                                .num_heads = 32,
                                                .max_position_embeddings = 131072,
                                                .rms_norm_eps = 1.5625e-7},
                                   .read = read_glm4};

}  // namespace strata::model
