// Qwen3-MoE: Qwen3's attention, and experts in the layers that decoder_sparse_step and
// mlp_only_layers leave to them.
// Source: HF modeling_qwen3_moe.py and configuration_qwen3_moe.py.
#include <fmt/format.h>

#include <algorithm>

#include "model/family.h"

namespace strata::model {
namespace {

constexpr std::string_view kArchitectures[] = {"Qwen3MoeForCausalLM"};
constexpr std::string_view kRead[] = {
    "layer_types", "decoder_sparse_step", "mlp_only_layers",     "moe_intermediate_size",
    "num_experts", "num_local_experts",   "num_experts_per_tok", "norm_topk_prob"};
constexpr std::string_view kInert[] = {"transformers.js_config", "sliding_window",
                                       "max_window_layers",      "router_aux_loss_coef",
                                       "output_router_logits",   "qkv_bias"};

// transformers 5 calls it num_local_experts; where both are there they must agree.
int64_t read_num_experts(const ConfigObject& object) {
  constexpr int64_t kDefaultExperts = 128;  // configuration_qwen3_moe.py, as all defaults here
  const int64_t experts =
      object.integer("num_experts", object.integer("num_local_experts", kDefaultExperts));
  if (object.has("num_local_experts") && object.integer("num_local_experts") != experts) {
    object.fail(fmt::format("num_experts {} and num_local_experts {} disagree", experts,
                            object.json("num_local_experts")));
  }
  return experts;
}

void read_layers(const ConfigObject& object, ModelConfig& config) {
  const int64_t step = object.integer("decoder_sparse_step", 1);
  if (step < 1) object.fail(fmt::format("decoder_sparse_step: got {}, want at least 1", step));
  const std::vector<int64_t> dense = object.integers("mlp_only_layers");
  for (int64_t layer = 0; layer < config.num_layers; ++layer) {
    const bool sparse = config.moe.num_experts > 0 && (layer + 1) % step == 0 &&
                        std::find(dense.begin(), dense.end(), layer) == dense.end();
    config.layer_kinds.push_back(
        {.attention = AttentionKind::kGqa, .mlp = sparse ? MlpKind::kMoe : MlpKind::kDense});
  }
}

void read_qwen3_moe(const ConfigObject& object, ModelConfig& config) {
  config.num_kv_heads = object.integer("num_key_value_heads", 4);
  config.head_dim = object.integer("head_dim", config.hidden_size / config.num_heads);
  config.qk_norm = true;
  config.moe.num_experts = read_num_experts(object);
  config.moe.top_k = object.integer("num_experts_per_tok", 8);
  config.moe.expert_width = object.integer("moe_intermediate_size", 768);
  config.moe.norm_topk = object.boolean("norm_topk_prob", false);
  read_layers(object, config);
  check_full_attention(object);
}

}  // namespace

const Family kQwen3MoeFamily = {.name = "qwen3_moe",
                                .architectures = kArchitectures,
                                .read_keys = kRead,
                                .inert_keys = kInert,
                                .read = read_qwen3_moe};

}  // namespace strata::model
