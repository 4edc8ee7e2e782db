// SPDX-License-Identifier: Apache-2.0
// Ministral 3, Devstral 2 and Mistral Medium 3.5, alone or inside a multimodal checkpoint: Llama's
// layers with YaRN, and queries that are scaled by their position.
// Sources: HF modeling_ministral3.py, configuration_ministral3.py, as all defaults here.
#include <fmt/format.h>

#include "model/blocks/attention_config.h"
#include "model/blocks/gated_mlp.h"
#include "model/blocks/gqa.h"
#include "model/families/family.h"
#include "model/families/mistral3_whole.h"

namespace strata::model {
namespace {

constexpr std::string_view kArchitectures[] = {"Ministral3ForCausalLM"};
constexpr std::string_view kTypes[] = {"ministral3"};
constexpr std::string_view kRead[] = {"sliding_window"};
constexpr std::string_view kInert[] = {"transformers.js_config"};
constexpr NeutralKey kNeutral[] = {{"attention_bias", "false"}, {"mlp_bias", "false"}};
constexpr TextPart kTextPart = make_mistral3_text_part("ministral3");

// What a file without rope_parameters and rope_scaling means.
constexpr RopeConfig kDefaultRope = {.type = RopeType::kYarn,
                                     .theta = 1e6,
                                     .factor = 16.0,
                                     .original_max_position_embeddings = 16384,
                                     .mscale = 1.0,
                                     .mscale_all_dim = 1.0};
constexpr double kDefaultBeta = 0.1;

// Which settings of RoPE the file has, in the newer form or the older one.
std::optional<ConfigObject> rope_settings(const ConfigObject& object) {
  auto settings = object.object("rope_parameters");
  return settings ? settings : object.object("rope_scaling");
}

RopeConfig read_optional_rope(const ConfigObject& object) {
  if (!rope_settings(object)) return kDefaultRope;
  return read_rope(object, {.theta = kDefaultRope.theta, .scales_positions = true});
}

// llama_4_scaling_beta is 0 where settings leave it out.
PositionScale read_position_scale(const ConfigObject& object, const RopeConfig& rope) {
  const auto settings = rope_settings(object);
  const double beta = settings ? settings->number("llama_4_scaling_beta", 0.0) : kDefaultBeta;
  if (!(beta >= 0.0 && beta < 1e6)) {
    object.fail(fmt::format("llama_4_scaling_beta: got {}, want at least 0", beta));
  }
  if (beta == 0.0) return {};
  return {.beta = beta, .length = rope.original_max_position_embeddings};
}

void read_ministral3(const ConfigObject& object, const DecoderKeys& keys, ModelConfig& config) {
  const int64_t head_dim = object.integer("head_dim", 128);
  const RopeConfig rope = read_optional_rope(object);
  GqaConfig attention = {.num_heads = keys.num_heads,
                         .num_kv_heads = read_kv_heads(object, keys, 8),
                         .head_dim = head_dim,
                         .scale = plain_attention_scale(head_dim),
                         .window = read_named_window(object),
                         .rope = config.ensure_rope({rope, head_dim})};
  if (const PositionScale scale = read_position_scale(object, rope); scale.beta != 0.0) {
    attention.query_rope = config.ensure_rope({rope, head_dim, scale});
  }
  const Block mlp(kGatedMlp, GatedMlpConfig{.width = keys.intermediate_size});
  config.layers.assign(static_cast<size_t>(keys.num_layers),
                       make_pre_norm_layer(config, Block(kGqa, attention), mlp));
}

}  // namespace

extern const Family kMinistral3Family = {.name = "ministral3",
                                         .architectures = kArchitectures,
                                         .model_types = kTypes,
                                         .read_keys = kRead,
                                         .inert_keys = kInert,
                                         .neutral_keys = kNeutral,
                                         .defaults = {.vocab_size = 131072,
                                                      .hidden_size = 4096,
                                                      .intermediate_size = 14336,
                                                      .num_layers = 34,
                                                      .num_heads = 32,
                                                      .max_position_embeddings = 262144,
                                                      .rms_norm_eps = 1e-5},
                                         .text_part = &kTextPart,
                                         .read = read_ministral3};

}  // namespace strata::model
