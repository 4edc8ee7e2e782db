// SPDX-License-Identifier: Apache-2.0
// SmolLM3: Llama's layers, every fourth of which rotates nothing; a window, where it is switched
// on, is in those. Sources: HF modeling_smollm3.py, configuration_smollm3.py, as all defaults here.
#include <fmt/format.h>

#include "model/blocks/attention_config.h"
#include "model/blocks/gated_mlp.h"
#include "model/blocks/gqa.h"
#include "model/families/family.h"

namespace strata::model {
namespace {

constexpr std::string_view kArchitectures[] = {"SmolLM3ForCausalLM"};
constexpr std::string_view kTypes[] = {"smollm3"};
constexpr std::string_view kRead[] = {"mlp_bias",    "no_rope_layers",     "no_rope_layer_interval",
                                      "layer_types", "use_sliding_window", "sliding_window"};
constexpr std::string_view kInert[] = {"transformers.js_config", "max_window_layers"};
constexpr NeutralKey kNeutral[] = {{"pretraining_tp", "1"}};

// Which layers rotate: no_rope_layers says 1 of those that do, for all layers and perhaps further
// ones; without it all do but every no_rope_layer_interval-th.
std::vector<bool> read_rotating_layers(const ConfigObject& object, int64_t num_layers) {
  const int64_t interval = read_size(object, "no_rope_layer_interval", 4);
  const std::vector<int64_t> listed = object.integers("no_rope_layers");
  if (object.has("no_rope_layers") && std::ssize(listed) < num_layers) {
    object.fail(fmt::format("no_rope_layers: got {} layers, num_hidden_layers is {}", listed.size(),
                            num_layers));
  }
  std::vector<bool> rotating;
  for (int64_t layer = 0; layer < num_layers; ++layer) {
    rotating.push_back(object.has("no_rope_layers") ? listed[static_cast<size_t>(layer)] != 0
                                                    : (layer + 1) % interval != 0);
  }
  return rotating;
}

void read_smollm3(const ConfigObject& object, const DecoderKeys& keys, ModelConfig& config) {
  constexpr double kTheta = 2e6;
  const int64_t head_dim = object.integer("head_dim", config.hidden_size / keys.num_heads);
  const int64_t window = read_enabled_window(object, /*otherwise=*/0);
  GqaConfig attention = {.num_heads = keys.num_heads,
                         .num_kv_heads = read_kv_heads(object, keys, 4),
                         .head_dim = head_dim,
                         .scale = plain_attention_scale(head_dim),
                         .qkv_bias = keys.attention_bias,
                         .o_bias = keys.attention_bias};
  const Block mlp(kGatedMlp, GatedMlpConfig{.width = keys.intermediate_size,
                                            .bias = object.boolean("mlp_bias", false)});
  const int rope = config.ensure_rope({read_rope(object, {.theta = kTheta}), head_dim});
  const std::vector<bool> rotating = read_rotating_layers(object, keys.num_layers);
  const std::vector<bool> sliding = read_layers_of_type(
      object, "sliding_attention", keys.num_layers,
      [&](int64_t layer) { return window > 0 && !rotating[static_cast<size_t>(layer)]; });
  for (size_t layer = 0; layer < rotating.size(); ++layer) {
    attention.rope = rotating[layer] ? rope : kNoRope;
    add_windowed_layers(object, {sliding[layer]}, window, attention, mlp, config);
  }
}

}  // namespace

extern const Family kSmolLm3Family = {.name = "smollm3",
                                      .architectures = kArchitectures,
                                      .model_types = kTypes,
                                      .read_keys = kRead,
                                      .inert_keys = kInert,
                                      .neutral_keys = kNeutral,
                                      .defaults = {.vocab_size = 128256,
                                                   .hidden_size = 2048,
                                                   .intermediate_size = 11008,
                                                   .num_layers = 36,
                                                   .num_heads = 16,
                                                   .max_position_embeddings = 32768,
                                                   .tie_word_embeddings = true},
                                      .read = read_smollm3};

}  // namespace strata::model
