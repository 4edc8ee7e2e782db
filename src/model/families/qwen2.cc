// SPDX-License-Identifier: Apache-2.0
// Qwen2 and Qwen2.5 dense: biases of q, k and v alone; a window, where it is switched on, in the
// layers from max_window_layers on.
// Source: HF modeling_qwen2.py and configuration_qwen2.py.
#include "model/blocks/attention_config.h"
#include "model/blocks/gated_mlp.h"
#include "model/blocks/gqa.h"
#include "model/families/family.h"

namespace strata::model {
namespace {

constexpr std::string_view kArchitectures[] = {"Qwen2ForCausalLM"};
constexpr std::string_view kTypes[] = {"qwen2"};
constexpr std::string_view kRead[] = {"layer_types", "use_sliding_window", "sliding_window",
                                      "max_window_layers"};
constexpr std::string_view kInert[] = {"transformers.js_config", "seq_length", "rotary_emb_base"};
constexpr NeutralKey kNeutral[] = {{"use_mrope", "false"}};

void read_qwen2(const ConfigObject& object, const DecoderKeys& keys, ModelConfig& config) {
  constexpr int64_t kDefaultKvHeads = 32;  // configuration_qwen2.py, as all defaults here
  const int64_t window = read_enabled_window(object);
  const std::vector<bool> sliding = read_windowed_layers(object, keys.num_layers, window);
  const int64_t head_dim = object.integer("head_dim", config.hidden_size / keys.num_heads);
  const GqaConfig attention = {.num_heads = keys.num_heads,
                               .num_kv_heads = read_kv_heads(object, keys, kDefaultKvHeads),
                               .head_dim = head_dim,
                               .scale = plain_attention_scale(head_dim),
                               .qkv_bias = true,
                               .rope = config.ensure_rope({read_rope(object), head_dim})};
  const Block mlp(kGatedMlp, GatedMlpConfig{.width = keys.intermediate_size});
  add_windowed_layers(object, sliding, window, attention, mlp, config);
}

}  // namespace

extern const Family kQwen2Family = {.name = "qwen2",
                                    .architectures = kArchitectures,
                                    .model_types = kTypes,
                                    .read_keys = kRead,
                                    .inert_keys = kInert,
                                    .neutral_keys = kNeutral,
                                    .defaults = {.max_position_embeddings = 32768},
                                    .read = read_qwen2};

}  // namespace strata::model
