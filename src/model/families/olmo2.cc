// SPDX-License-Identifier: Apache-2.0
// OLMo 2 and OLMo 3: norms behind each branch alone, and over all heads of queries and keys; OLMo 3
// has a window in three of four layers, and its RoPE scaling in the others.
// Sources: HF modeling_olmo2.py, configuration_olmo2.py, modeling_olmo3.py, configuration_olmo3.py,
// as all defaults here.
#include "model/blocks/attention_config.h"
#include "model/blocks/gated_mlp.h"
#include "model/blocks/gqa.h"
#include "model/connectors/post_norm_add.h"
#include "model/families/family.h"
#include "model/families/layer_ropes.h"

namespace strata::model {
namespace {

constexpr std::string_view kOlmo2Architectures[] = {"Olmo2ForCausalLM"};
constexpr std::string_view kOlmo2Types[] = {"olmo2"};
constexpr std::string_view kOlmo3Architectures[] = {"Olmo3ForCausalLM"};
constexpr std::string_view kOlmo3Types[] = {"olmo3"};
constexpr std::string_view kOlmo3Read[] = {"layer_types", "sliding_window"};
constexpr std::string_view kInert[] = {"transformers.js_config"};
constexpr NeutralKey kNeutral[] = {{"clip_qkv", "null"}};

GqaConfig read_attention(const ConfigObject& object, const DecoderKeys& keys,
                         const ModelConfig& config) {
  const int64_t head_dim = object.integer("head_dim", config.hidden_size / keys.num_heads);
  return {.num_heads = keys.num_heads,
          .num_kv_heads = object.integer("num_key_value_heads", keys.num_heads),
          .head_dim = head_dim,
          .scale = plain_attention_scale(head_dim),
          .qkv_bias = keys.attention_bias,
          .o_bias = keys.attention_bias,
          .qk_norm = true,
          .norms_span_heads = true,
          .eps = config.rms_norm_eps};
}

LayerConfig make_layer(const ModelConfig& config, const GqaConfig& attention,
                       const DecoderKeys& keys) {
  const auto norm = [&](std::string_view after) {
    return Connector(kPostNormAdd, PostNormAddConfig{.after = after, .eps = config.rms_norm_eps});
  };
  return {{norm("post_attention_layernorm.weight"), Block(kGqa, attention)},
          {norm("post_feedforward_layernorm.weight"),
           Block(kGatedMlp, GatedMlpConfig{.width = keys.intermediate_size})}};
}

void read_olmo2(const ConfigObject& object, const DecoderKeys& keys, ModelConfig& config) {
  GqaConfig attention = read_attention(object, keys, config);
  attention.rope = config.ensure_rope({read_rope(object), attention.head_dim});
  config.layers.assign(static_cast<size_t>(keys.num_layers), make_layer(config, attention, keys));
}

// Whether the settings are of one kind for all layers, as transformers 5.0 to 5.8 saved them.
bool is_flat(const ConfigObject& parameters) {
  return parameters.has("rope_type") || parameters.has("rope_theta");
}

// A scaling is the full layers' alone, whichever form says it: the paper scales no sliding layer.
// The older form's rope_theta is theirs too; of sliding layers transformers then takes the default.
LayerRopes read_olmo3_ropes(const ConfigObject& object) {
  constexpr double kTheta = 5e5;
  LayerRopes ropes;
  ropes.sliding.theta = kTheta;
  const auto parameters = object.object("rope_parameters");
  if (parameters && is_flat(*parameters)) {
    ropes.full = read_rope(object, {.theta = kTheta});
    ropes.sliding.theta = ropes.full.theta;
    return ropes;
  }
  ropes.full = read_older_full_rope(object, object.number("rope_theta", kTheta));
  return read_layer_ropes(object, ropes);
}

void read_olmo3(const ConfigObject& object, const DecoderKeys& keys, ModelConfig& config) {
  GqaConfig attention = read_attention(object, keys, config);
  const int64_t window = read_size(object, "sliding_window", 4096);
  const LayerRopes ropes = read_olmo3_ropes(object);
  const int full = config.ensure_rope({ropes.full, attention.head_dim});
  const int sliding = config.ensure_rope({ropes.sliding, attention.head_dim});
  for (const bool has_window :
       read_layers_of_type(object, "sliding_attention", keys.num_layers,
                           [](int64_t layer) { return (layer + 1) % 4 != 0; })) {
    attention.window = has_window ? window : 0;
    attention.rope = has_window ? sliding : full;
    config.layers.push_back(make_layer(config, attention, keys));
  }
}

constexpr DecoderDefaults kDefaults = {.vocab_size = 50304,
                                       .hidden_size = 4096,
                                       .intermediate_size = 11008,
                                       .num_layers = 32,
                                       .num_heads = 32,
                                       .rms_norm_eps = 1e-5};

}  // namespace

extern const Family kOlmo2Family = {.name = "olmo2",
                                    .architectures = kOlmo2Architectures,
                                    .model_types = kOlmo2Types,
                                    .read_keys = {},
                                    .inert_keys = kInert,
                                    .neutral_keys = kNeutral,
                                    .defaults = kDefaults,
                                    .read = read_olmo2};

extern const Family kOlmo3Family = {.name = "olmo3",
                                    .architectures = kOlmo3Architectures,
                                    .model_types = kOlmo3Types,
                                    .read_keys = kOlmo3Read,
                                    .inert_keys = kInert,
                                    .neutral_keys = kNeutral,
                                    .defaults = kDefaults,
                                    .read = read_olmo3};

}  // namespace strata::model
