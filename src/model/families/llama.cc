// SPDX-License-Identifier: Apache-2.0
// Llama 2, Llama 3, 3.1, 3.2 and what shares their architecture (SmolLM2).
// Source: HF modeling_llama.py and configuration_llama.py.
#include "model/blocks/attention_config.h"
#include "model/blocks/gated_mlp.h"
#include "model/blocks/gqa.h"
#include "model/families/family.h"

namespace strata::model {
namespace {

constexpr std::string_view kArchitectures[] = {"LlamaForCausalLM"};
constexpr std::string_view kTypes[] = {"llama"};
constexpr std::string_view kRead[] = {"mlp_bias"};
constexpr std::string_view kInert[] = {"transformers.js_config", "is_llama_config",
                                       "rope_interleaved"};
constexpr NeutralKey kNeutral[] = {{"pretraining_tp", "1"}};

void read_llama(const ConfigObject& object, const DecoderKeys& keys, ModelConfig& config) {
  const int64_t head_dim = object.integer("head_dim", config.hidden_size / keys.num_heads);
  const Block attention(
      kGqa, GqaConfig{.num_heads = keys.num_heads,
                      .num_kv_heads = object.integer("num_key_value_heads", keys.num_heads),
                      .head_dim = head_dim,
                      .scale = plain_attention_scale(head_dim),
                      .qkv_bias = keys.attention_bias,
                      .o_bias = keys.attention_bias,
                      .rope = config.ensure_rope({read_rope(object), head_dim})});
  const Block mlp(kGatedMlp, GatedMlpConfig{.width = keys.intermediate_size,
                                            .bias = object.boolean("mlp_bias", false)});
  config.layers.assign(static_cast<size_t>(keys.num_layers),
                       make_pre_norm_layer(config, attention, mlp));
}

}  // namespace

extern const Family kLlamaFamily = {.name = "llama",
                                    .architectures = kArchitectures,
                                    .model_types = kTypes,
                                    .read_keys = kRead,
                                    .inert_keys = kInert,
                                    .neutral_keys = kNeutral,
                                    .read = read_llama};

}  // namespace strata::model
