// SPDX-License-Identifier: Apache-2.0
// Qwen3 dense: RMSNorm on every query and key head before RoPE, an explicit head_dim; a window,
// where it is switched on, in the layers from max_window_layers on.
// Source: HF modeling_qwen3.py and configuration_qwen3.py.
#include "model/blocks/attention_config.h"
#include "model/blocks/gated_mlp.h"
#include "model/blocks/gqa.h"
#include "model/families/family.h"

namespace strata::model {
namespace {

constexpr std::string_view kArchitectures[] = {"Qwen3ForCausalLM"};
constexpr std::string_view kTypes[] = {"qwen3"};
constexpr std::string_view kRead[] = {"layer_types", "use_sliding_window", "sliding_window",
                                      "max_window_layers"};
constexpr std::string_view kInert[] = {"transformers.js_config"};

void read_qwen3(const ConfigObject& object, const DecoderKeys& keys, ModelConfig& config) {
  constexpr int64_t kDefaultKvHeads = 32;   // configuration_qwen3.py
  constexpr int64_t kDefaultHeadDim = 128;  // configuration_qwen3.py: not hidden_size / heads
  const int64_t head_dim = object.integer("head_dim", kDefaultHeadDim);
  const int64_t window = read_enabled_window(object);
  const std::vector<bool> sliding = read_windowed_layers(object, keys.num_layers, window);
  const GqaConfig attention = {.num_heads = keys.num_heads,
                               .num_kv_heads = read_kv_heads(object, keys, kDefaultKvHeads),
                               .head_dim = head_dim,
                               .scale = plain_attention_scale(head_dim),
                               .qkv_bias = keys.attention_bias,
                               .o_bias = keys.attention_bias,
                               .qk_norm = true,
                               .eps = config.rms_norm_eps,
                               .rope = config.ensure_rope({read_rope(object), head_dim})};
  const Block mlp(kGatedMlp, GatedMlpConfig{.width = keys.intermediate_size});
  add_windowed_layers(object, sliding, window, attention, mlp, config);
}

}  // namespace

extern const Family kQwen3Family = {.name = "qwen3",
                                    .architectures = kArchitectures,
                                    .model_types = kTypes,
                                    .read_keys = kRead,
                                    .inert_keys = kInert,
                                    .read = read_qwen3};

}  // namespace strata::model
