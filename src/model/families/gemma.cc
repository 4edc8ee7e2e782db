// SPDX-License-Identifier: Apache-2.0
// Gemma: Llama's layers with norms of 1 + w, a scaled embedding and the tanh form of GELU.
// Sources: HF modeling_gemma.py, configuration_gemma.py, as all defaults here.
#include "model/blocks/attention_config.h"
#include "model/families/gemma_layer.h"

namespace strata::model {
namespace {

constexpr std::string_view kArchitectures[] = {"GemmaForCausalLM"};
constexpr std::string_view kTypes[] = {"gemma"};
constexpr std::string_view kInert[] = {"transformers.js_config"};
// The published files say "gelu" and mean its tanh form.
constexpr NeutralKey kNeutral[] = {{"hidden_act", "\"gelu_pytorch_tanh\""},
                                   {"hidden_act", "\"gelu\""},
                                   {"hidden_activation", "\"gelu_pytorch_tanh\""},
                                   {"use_bidirectional_attention", "false"}};

void read_gemma(const ConfigObject& object, const DecoderKeys& keys, ModelConfig& config) {
  const int64_t head_dim = object.integer("head_dim", 256);
  set_gemma_defaults(config);
  const Block attention(kGqa, GqaConfig{.num_heads = keys.num_heads,
                                        .num_kv_heads = object.integer("num_key_value_heads", 16),
                                        .head_dim = head_dim,
                                        .scale = plain_attention_scale(head_dim),
                                        .qkv_bias = keys.attention_bias,
                                        .o_bias = keys.attention_bias,
                                        .rope = config.ensure_rope({read_rope(object), head_dim})});
  config.layers.assign(static_cast<size_t>(keys.num_layers),
                       make_pre_norm_layer(config, attention, make_gemma_mlp(keys)));
}

}  // namespace

extern const Family kGemmaFamily = {.name = "gemma",
                                    .architectures = kArchitectures,
                                    .model_types = kTypes,
                                    .read_keys = {},
                                    .inert_keys = kInert,
                                    .neutral_keys = kNeutral,
                                    .defaults = {.vocab_size = 256000,
                                                 .hidden_size = 3072,
                                                 .intermediate_size = 24576,
                                                 .num_layers = 28,
                                                 .num_heads = 16,
                                                 .max_position_embeddings = 8192,
                                                 .tie_word_embeddings = true},
                                    .read = read_gemma};

}  // namespace strata::model
