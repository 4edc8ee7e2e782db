// SPDX-License-Identifier: Apache-2.0
// Gemma 2: norms of 1 + w before and after each branch, a window in every other layer, caps on the
// scores and on the logits, a scaled embedding, the tanh form of GELU. Sources: HF
// modeling_gemma2.py (its eager attention: others leave out the cap), configuration_gemma2.py, as
// all defaults here.
#include <cmath>

#include "model/families/gemma_layer.h"

namespace strata::model {
namespace {

constexpr std::string_view kArchitectures[] = {"Gemma2ForCausalLM"};
constexpr std::string_view kTypes[] = {"gemma2"};
constexpr std::string_view kRead[] = {"layer_types", "sliding_window", "query_pre_attn_scalar",
                                      "attn_logit_softcapping", "final_logit_softcapping"};
constexpr std::string_view kInert[] = {"transformers.js_config", "cache_implementation"};
constexpr NeutralKey kNeutral[] = {{"hidden_activation", "\"gelu_pytorch_tanh\""},
                                   {"hidden_act", "\"gelu_pytorch_tanh\""},
                                   {"use_bidirectional_attention", "false"}};
constexpr std::string_view kSliding = "sliding_attention";

// 0 where an explicit null says that there is none.
float read_cap(const ConfigObject& object, std::string_view key, double fallback) {
  return object.is_null(key) ? 0.0f
                             : static_cast<float>(read_positive_number(object, key, fallback));
}

void read_gemma2(const ConfigObject& object, const DecoderKeys& keys, ModelConfig& config) {
  const int64_t window = read_size(object, "sliding_window", 4096);
  const int64_t head_dim = object.integer("head_dim", 256);
  const double scalar = read_positive_number(object, "query_pre_attn_scalar", 256.0);
  set_gemma_defaults(config);
  config.logit_map.cap = read_cap(object, "final_logit_softcapping", 30.0);
  GqaConfig attention = {.num_heads = keys.num_heads,
                         .num_kv_heads = object.integer("num_key_value_heads", 4),
                         .head_dim = head_dim,
                         .scale = static_cast<float>(1.0 / std::sqrt(scalar)),
                         .score_cap = read_cap(object, "attn_logit_softcapping", 50.0),
                         .qkv_bias = keys.attention_bias,
                         .o_bias = keys.attention_bias,
                         .rope = config.ensure_rope({read_rope(object), head_dim})};
  const Block mlp = make_gemma_mlp(keys);
  for (const bool has_window : read_layers_of_type(object, kSliding, keys.num_layers,
                                                   [](int64_t layer) { return layer % 2 == 0; })) {
    attention.window = has_window ? window : 0;
    config.layers.push_back(make_gemma_layer(config, attention, mlp));
  }
}

}  // namespace

extern const Family kGemma2Family = {.name = "gemma2",
                                     .architectures = kArchitectures,
                                     .model_types = kTypes,
                                     .read_keys = kRead,
                                     .inert_keys = kInert,
                                     .neutral_keys = kNeutral,
                                     .defaults = {.vocab_size = 256000,
                                                  .hidden_size = 2304,
                                                  .intermediate_size = 9216,
                                                  .num_layers = 26,
                                                  .num_heads = 8,
                                                  .max_position_embeddings = 8192,
                                                  .tie_word_embeddings = true},
                                     .read = read_gemma2};

}  // namespace strata::model
