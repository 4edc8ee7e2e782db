// SPDX-License-Identifier: Apache-2.0
// Qwen3-MoE: Qwen3's attention, with a window in all layers or in none, and experts in the layers
// that decoder_sparse_step and mlp_only_layers leave to them.
// Sources: HF modeling_qwen3_moe.py, configuration_qwen3_moe.py, as all defaults here.
#include <fmt/format.h>

#include "base/error.h"
#include "model/blocks/attention_config.h"
#include "model/blocks/experts/moe.h"
#include "model/blocks/gated_mlp.h"
#include "model/blocks/gqa.h"
#include "model/families/family.h"

namespace strata::model {
namespace {

constexpr std::string_view kArchitectures[] = {"Qwen3MoeForCausalLM"};
constexpr std::string_view kTypes[] = {"qwen3_moe"};
constexpr std::string_view kRead[] = {
    "layer_types",        "decoder_sparse_step", "mlp_only_layers",     "moe_intermediate_size",
    "num_experts",        "num_local_experts",   "num_experts_per_tok", "norm_topk_prob",
    "use_sliding_window", "sliding_window"};
constexpr std::string_view kInert[] = {"transformers.js_config", "max_window_layers",
                                       "router_aux_loss_coef", "output_router_logits", "qkv_bias"};

// 0 or the window of every layer: transformers' model asks for the window alone, so that a
// layer_types which says anything else would not be what it computes.
int64_t read_window(const ConfigObject& object) {
  const int64_t window = read_enabled_window(object);
  const std::string_view type = window > 0 ? "sliding_attention" : "full_attention";
  for (const std::string& got : object.texts("layer_types")) {
    if (got == type) continue;
    throw Error(
        ErrorCode::kUnsupported,
        fmt::format("{}: layer_types: got '{}', want {} in every layer, as use_sliding_window "
                    "and sliding_window say",
                    object.where(), got, type));
  }
  return window;
}

void read_qwen3_moe(const ConfigObject& object, const DecoderKeys& keys, ModelConfig& config) {
  const int64_t head_dim = object.integer("head_dim", config.hidden_size / keys.num_heads);
  const Block attention(kGqa, GqaConfig{.num_heads = keys.num_heads,
                                        .num_kv_heads = object.integer("num_key_value_heads", 4),
                                        .head_dim = head_dim,
                                        .scale = plain_attention_scale(head_dim),
                                        .qkv_bias = keys.attention_bias,
                                        .o_bias = keys.attention_bias,
                                        .qk_norm = true,
                                        .eps = config.rms_norm_eps,
                                        .window = read_window(object),
                                        .rope = config.ensure_rope({read_rope(object), head_dim})});
  const MoeConfig moe = {.num_experts = object.integer(
                             choose_present_key(object, "num_experts", "num_local_experts"), 128),
                         .top_k = object.integer("num_experts_per_tok", 8),
                         .expert_width = object.integer("moe_intermediate_size", 768),
                         .norm_topk = object.boolean("norm_topk_prob", false)};
  const LayerConfig dense = make_pre_norm_layer(
      config, attention, Block(kGatedMlp, GatedMlpConfig{.width = keys.intermediate_size}));
  const LayerConfig sparse = make_pre_norm_layer(config, attention, Block(kMoe, moe));
  for (const bool is_sparse : read_sparse_layers(object, keys, moe.num_experts)) {
    config.layers.push_back(is_sparse ? sparse : dense);
  }
}

}  // namespace

extern const Family kQwen3MoeFamily = {.name = "qwen3_moe",
                                       .architectures = kArchitectures,
                                       .model_types = kTypes,
                                       .read_keys = kRead,
                                       .inert_keys = kInert,
                                       .read = read_qwen3_moe};

}  // namespace strata::model
