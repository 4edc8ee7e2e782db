// SPDX-License-Identifier: Apache-2.0
// Mistral 7B, Nemo and Small (3.1 and 3.2 inside a multimodal checkpoint), and Ministral 8B:
// Llama's layers with a window in all of them, in some, or in none. Sources: HF
// modeling_mistral.py, modeling_ministral.py and their configurations.
#include "model/blocks/attention_config.h"
#include "model/blocks/gated_mlp.h"
#include "model/blocks/gqa.h"
#include "model/families/family.h"
#include "model/families/mistral3_whole.h"

namespace strata::model {
namespace {

constexpr std::string_view kArchitectures[] = {"MistralForCausalLM", "MinistralForCausalLM"};
constexpr std::string_view kTypes[] = {"mistral", "ministral"};
constexpr std::string_view kRead[] = {"layer_types", "sliding_window"};
constexpr std::string_view kInert[] = {"transformers.js_config"};
constexpr NeutralKey kNeutral[] = {{"attention_bias", "false"}, {"mlp_bias", "false"}};
constexpr TextPart kTextPart = make_mistral3_text_part("mistral");

// An explicit null says that there is no window; an absent key, that it is the default.
int64_t read_window(const ConfigObject& object) {
  constexpr int64_t kDefaultWindow = 4096;
  if (object.is_null("sliding_window")) return 0;
  return read_size(object, "sliding_window", kDefaultWindow);
}

void read_mistral(const ConfigObject& object, const DecoderKeys& keys, ModelConfig& config) {
  constexpr int64_t kDefaultKvHeads = 8;
  const int64_t window = read_window(object);
  const std::vector<bool> sliding = read_layers_of_type(
      object, "sliding_attention", keys.num_layers, [&](int64_t) { return window > 0; });
  const int64_t head_dim = object.integer("head_dim", config.hidden_size / keys.num_heads);
  const GqaConfig attention = {
      .num_heads = keys.num_heads,
      .num_kv_heads = object.integer("num_key_value_heads", kDefaultKvHeads),
      .head_dim = head_dim,
      .scale = plain_attention_scale(head_dim),
      .rope = config.ensure_rope({read_rope(object), head_dim})};
  const Block mlp(kGatedMlp, GatedMlpConfig{.width = keys.intermediate_size});
  add_windowed_layers(object, sliding, window, attention, mlp, config);
}

}  // namespace

extern const Family kMistralFamily = {.name = "mistral",
                                      .architectures = kArchitectures,
                                      .model_types = kTypes,
                                      .read_keys = kRead,
                                      .inert_keys = kInert,
                                      .neutral_keys = kNeutral,
                                      .defaults = {.max_position_embeddings = 131072},
                                      .text_part = &kTextPart,
                                      .read = read_mistral};

}  // namespace strata::model
