// SPDX-License-Identifier: Apache-2.0
// DeepSeek-V3 and R1, and GLM-4-MoE-Lite, which differs in the defaults of its config: latent
// attention, a sigmoid router, shared experts, dense layers first. Layers beyond num_hidden_layers
// (multi-token prediction) take no part in the forward.
// Sources: HF modeling_deepseek_v3.py, configuration_deepseek_v3.py,
// configuration_glm4_moe_lite.py.
#include "model/families/deepseek_attention.h"
#include "model/families/deepseek_experts.h"

namespace strata::model {
namespace {

constexpr std::string_view kGlmLite = "Glm4MoeLiteForCausalLM";
constexpr std::string_view kArchitectures[] = {"DeepseekV3ForCausalLM", kGlmLite};
constexpr std::string_view kTypes[] = {"deepseek_v3", "kimi_k2", "glm4_moe_lite"};
constexpr std::string_view kRead[] = {"qk_head_dim",
                                      "qk_nope_head_dim",
                                      "qk_rope_head_dim",
                                      "v_head_dim",
                                      "q_lora_rank",
                                      "kv_lora_rank",
                                      "rope_interleave",
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
constexpr std::string_view kInert[] = {"output_router_logits",
                                       "router_aux_loss_coef",
                                       "aux_loss_alpha",
                                       "seq_aux",
                                       "ep_size",
                                       "auto_map",
                                       "_experts_implementation"};
constexpr NeutralKey kNeutral[] = {{"pretraining_tp", "1"},
                                   {"moe_layer_freq", "1"},
                                   {"scoring_func", "\"sigmoid\""},
                                   {"topk_method", "\"noaux_tc\""}};

// Values of keys that a file leaves out.
struct Defaults {
  DeepseekAttentionDefaults attention;
  DeepseekExpertDefaults experts;
  double rms_norm_eps;
};
constexpr Defaults kDeepseekDefaults = {{1536, 128, 128}, {3, 256, 8, 2048, 8, 4, 2.5}, 1e-6};
constexpr Defaults kGlmDefaults = {{768, 192, 256}, {1, 64, 4, 1536, 1, 1, 1.8}, 1e-5};

void read_deepseek_v3(const ConfigObject& object, const DecoderKeys& keys, ModelConfig& config) {
  const Defaults& defaults = config.architecture == kGlmLite ? kGlmDefaults : kDeepseekDefaults;
  config.rms_norm_eps = object.number("rms_norm_eps", defaults.rms_norm_eps);
  const Block attention = read_deepseek_attention(object, defaults.attention, keys, config);
  add_deepseek_layers(object, keys, defaults.experts, attention, config);
}

}  // namespace

extern const Family kDeepseekV3Family = {.name = "deepseek_v3",
                                         .architectures = kArchitectures,
                                         .model_types = kTypes,
                                         .read_keys = kRead,
                                         .inert_keys = kInert,
                                         .neutral_keys = kNeutral,
                                         .read = read_deepseek_v3};

}  // namespace strata::model
