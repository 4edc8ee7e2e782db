// SPDX-License-Identifier: Apache-2.0
// GLM-4.5, 4.6 and 4.7: grouped-query attention that rotates half of each head, and DeepSeek-V3's
// layers. Sources: HF modeling_glm4_moe.py, configuration_glm4_moe.py, as all defaults here.
#include "model/blocks/attention_config.h"
#include "model/blocks/gqa.h"
#include "model/families/deepseek_experts.h"

namespace strata::model {
namespace {

constexpr std::string_view kArchitectures[] = {"Glm4MoeForCausalLM"};
constexpr std::string_view kTypes[] = {"glm4_moe"};
constexpr std::string_view kRead[] = {"use_qk_norm",
                                      "n_routed_experts",
                                      "num_local_experts",
                                      "n_shared_experts",
                                      "num_experts_per_tok",
                                      "moe_intermediate_size",
                                      "first_k_dense_replace",
                                      "mlp_layer_types",
                                      "n_group",
                                      "topk_group",
                                      "norm_topk_prob",
                                      "routed_scaling_factor",
                                      "num_nextn_predict_layers",
                                      "num_mtp_layers"};
constexpr std::string_view kInert[] = {"output_router_logits", "router_aux_loss_coef",
                                       "_experts_implementation"};
constexpr DeepseekExpertDefaults kExperts = {1, 128, 8, 1408, 1, 1, 1.0};

void read_glm4_moe(const ConfigObject& object, const DecoderKeys& keys, ModelConfig& config) {
  const int64_t head_dim = object.integer("head_dim", config.hidden_size / keys.num_heads);
  const RopeConfig rope = read_rope(object, {.partial_rotary_factor = 0.5, .is_partial = true});
  const int64_t rotary_dim = rotary_width(rope, head_dim);
  const Block attention(kGqa, GqaConfig{.num_heads = keys.num_heads,
                                        .num_kv_heads = object.integer("num_key_value_heads", 8),
                                        .head_dim = head_dim,
                                        .scale = plain_attention_scale(head_dim),
                                        .qkv_bias = keys.attention_bias,
                                        .qk_norm = object.boolean("use_qk_norm", false),
                                        .eps = config.rms_norm_eps,
                                        .rope = config.ensure_rope({rope, rotary_dim}),
                                        .rotary_dim = rotary_dim});
  add_deepseek_layers(object, keys, kExperts, attention, config);
}

}  // namespace

extern const Family kGlm4MoeFamily = {.name = "glm4_moe",
                                      .architectures = kArchitectures,
                                      .model_types = kTypes,
                                      .read_keys = kRead,
                                      .inert_keys = kInert,
                                      .defaults = {.vocab_size = 151552,
                                                   .hidden_size = 4096,
                                                   .intermediate_size = 10944,
                                                   .num_layers = 46,
                                                   .num_heads = 96,
                                                   .max_position_embeddings = 131072,
                                                   .rms_norm_eps = 1e-5},
                                      .read = read_glm4_moe};

}  // namespace strata::model
