// SPDX-License-Identifier: Apache-2.0
// DeepSeek-V2, V2-Lite and Coder-V2: DeepSeek-V3's attention and layers, and a softmax router whose
// weights are not normalised. Sources: HF modeling_deepseek_v2.py, configuration_deepseek_v2.py, as
// all defaults here.
#include <fmt/format.h>

#include "base/error.h"
#include "model/families/deepseek_attention.h"
#include "model/families/deepseek_experts.h"

namespace strata::model {
namespace {

constexpr std::string_view kArchitectures[] = {"DeepseekV2ForCausalLM"};
constexpr std::string_view kTypes[] = {"deepseek_v2"};
constexpr std::string_view kRead[] = {"qk_head_dim",
                                      "qk_nope_head_dim",
                                      "qk_rope_head_dim",
                                      "v_head_dim",
                                      "q_lora_rank",
                                      "kv_lora_rank",
                                      "n_routed_experts",
                                      "num_local_experts",
                                      "n_shared_experts",
                                      "num_experts_per_tok",
                                      "moe_intermediate_size",
                                      "first_k_dense_replace",
                                      "topk_method",
                                      "n_group",
                                      "topk_group",
                                      "routed_scaling_factor"};
constexpr std::string_view kInert[] = {
    "output_router_logits",   "aux_loss_alpha", "seq_aux", "ep_size", "auto_map",
    "_experts_implementation"};
// The release leaves out the scaling factor where weights are normalised, transformers normalises
// none.
constexpr NeutralKey kNeutral[] = {{"norm_topk_prob", "false"},
                                   {"scoring_func", "\"softmax\""},
                                   {"moe_layer_freq", "1"},
                                   {"mlp_bias", "false"},
                                   {"pretraining_tp", "1"}};
constexpr DeepseekAttentionDefaults kAttention = {1536, 128, 128};
constexpr DeepseekExpertDefaults kExperts = {0, 64, 2, 1407, 1, 1, 1.0, /*num_shared=*/2};

MoeConfig read_experts(const ConfigObject& object, const DeepseekExpertDefaults& defaults) {
  const std::string method = object.text("topk_method", "greedy");
  if (method != "greedy" && method != "group_limited_greedy") {
    throw Error(ErrorCode::kUnsupported,
                fmt::format("{}: topk_method: got '{}', supported are greedy and "
                            "group_limited_greedy",
                            object.where(), method));
  }
  MoeConfig moe = read_deepseek_experts(object, defaults);
  moe.router = RouterKind::kSoftmax;
  moe.norm_topk = false;
  moe.one_best = true;
  if (method == "greedy") moe.num_groups = moe.top_groups = 1;
  return moe;
}

void read_deepseek_v2(const ConfigObject& object, const DecoderKeys& keys, ModelConfig& config) {
  const Block attention = read_deepseek_attention(object, kAttention, keys, config);
  add_deepseek_layers(object, keys, kExperts, attention, config, read_experts);
  config.num_mtp_layers = 0;
}

}  // namespace

extern const Family kDeepseekV2Family = {.name = "deepseek_v2",
                                         .architectures = kArchitectures,
                                         .model_types = kTypes,
                                         .read_keys = kRead,
                                         .inert_keys = kInert,
                                         .neutral_keys = kNeutral,
                                         .defaults = {.vocab_size = 102400,
                                                      .hidden_size = 4096,
                                                      .intermediate_size = 11008,
                                                      .num_layers = 32,
                                                      .num_heads = 32},
                                         .read = read_deepseek_v2};

}  // namespace strata::model
