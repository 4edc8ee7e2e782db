// SPDX-License-Identifier: Apache-2.0
// DeepSeek-V3 and R1, and GLM-4-MoE-Lite, which differs in the defaults of its config: latent
// attention, a sigmoid router, shared experts, dense layers first. Layers beyond num_hidden_layers
// (multi-token prediction) take no part in the forward.
// Sources: HF modeling_deepseek_v3.py, configuration_deepseek_v3.py,
// configuration_glm4_moe_lite.py.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "model/blocks/attention_config.h"
#include "model/blocks/experts/moe.h"
#include "model/blocks/gated_mlp.h"
#include "model/blocks/mla.h"
#include "model/families/family.h"

namespace strata::model {
namespace {

constexpr std::string_view kGlmLite = "Glm4MoeLiteForCausalLM";
constexpr std::string_view kArchitectures[] = {"DeepseekV3ForCausalLM", kGlmLite};
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
  int64_t q_lora_rank, nope_dim, value_dim;
  int64_t num_dense, num_experts, top_k, expert_width, num_groups, top_groups;
  double scale, rms_norm_eps;
};
constexpr Defaults kDeepseekDefaults = {1536, 128, 128, 3, 256, 8, 2048, 8, 4, 2.5, 1e-6};
constexpr Defaults kGlmDefaults = {768, 192, 256, 1, 64, 4, 1536, 1, 1, 1.8, 1e-5};

// Source: HF modeling_deepseek_v3.py, yarn_apply_mscale.
float attention_scale(const RopeConfig& rope, int64_t head_dim) {
  if (rope.type == RopeType::kDefault || rope.mscale_all_dim == 0.0) {
    return plain_attention_scale(head_dim);
  }
  const double plain = 1.0 / std::sqrt(static_cast<double>(head_dim));
  const double m = yarn_mscale(rope.factor, rope.mscale_all_dim);
  return static_cast<float>(plain * m * m);
}

// A derived size that files may repeat.
void check_derived_size(const ConfigObject& object, std::string_view key, int64_t value) {
  if (object.has(key) && object.integer(key) != value) {
    object.fail(
        fmt::format("key '{}': got {}, the other sizes say {}", key, object.json(key), value));
  }
}

// Which rotary table the attention's is stays open.
std::pair<MlaConfig, RopeConfig> read_attention_and_rope(const ConfigObject& object,
                                                         const Defaults& defaults,
                                                         const DecoderKeys& keys) {
  constexpr int64_t kKvLoraRank = 512;
  constexpr int64_t kRopeDim = 64;
  MlaConfig mla;
  mla.num_heads = keys.num_heads;
  mla.bias = keys.attention_bias;
  // An explicit null says that queries have no latent; an absent key, that its rank is the default.
  if (object.is_null("q_lora_rank")) {
    mla.q_lora_rank = 0;
  } else {
    mla.q_lora_rank = read_size(object, "q_lora_rank", defaults.q_lora_rank);
  }
  mla.kv_lora_rank = read_size(object, "kv_lora_rank", kKvLoraRank);
  mla.nope_dim = read_size(object, "qk_nope_head_dim", defaults.nope_dim);
  mla.rope_dim = read_size(object, "qk_rope_head_dim", kRopeDim);
  mla.value_dim = read_size(object, "v_head_dim", defaults.value_dim);
  mla.rope_interleave = object.boolean("rope_interleave", true);
  const RopeConfig rope = read_rope(object);
  mla.scale = attention_scale(rope, mla.head_dim());
  check_derived_size(object, "num_key_value_heads", keys.num_heads);
  check_derived_size(object, "head_dim", mla.rope_dim);  // as transformers writes it
  check_derived_size(object, "qk_head_dim", mla.head_dim());
  return {mla, rope};
}

// The layers that mlp_layer_types calls dense.
std::vector<bool> read_listed_dense_layers(const ConfigObject& object, size_t num_layers) {
  const std::vector<std::string> types = object.texts("mlp_layer_types");
  if (types.size() != num_layers) {
    object.fail(fmt::format("mlp_layer_types: got {} layers, num_hidden_layers is {}", types.size(),
                            num_layers));
  }
  std::vector<bool> dense(num_layers);
  for (size_t i = 0; i < types.size(); ++i) {
    if (types[i] != "dense" && types[i] != "sparse") {
      object.fail(fmt::format("mlp_layer_types: got '{}', want dense or sparse", types[i]));
    }
    dense[i] = types[i] == "dense";
  }
  return dense;
}

// Which layers have a dense MLP: the first ones, or by a list.
std::vector<bool> read_dense_layers(const ConfigObject& object, const DecoderKeys& keys,
                                    const Defaults& defaults) {
  const int64_t first = object.integer("first_k_dense_replace", defaults.num_dense);
  if (first < 0) object.fail(fmt::format("first_k_dense_replace: got {}, want >= 0", first));
  std::vector<bool> dense(static_cast<size_t>(keys.num_layers));
  for (size_t i = 0; i < dense.size(); ++i) dense[i] = static_cast<int64_t>(i) < first;
  if (!object.has("mlp_layer_types")) return dense;
  std::vector<bool> listed = read_listed_dense_layers(object, dense.size());
  if (listed != dense && object.has("first_k_dense_replace")) {
    object.fail("mlp_layer_types and first_k_dense_replace disagree");
  }
  return listed;
}

void check_groups(const ConfigObject& object, const MoeConfig& moe) {
  const int64_t per_group = moe.num_experts / moe.num_groups;
  if (moe.num_experts % moe.num_groups != 0 || moe.top_groups > moe.num_groups || per_group < 2 ||
      moe.top_k > moe.top_groups * per_group) {
    object.fail(
        fmt::format("{} experts in n_group {} (two or more in each), topk_group {} and "
                    "num_experts_per_tok {} do not fit together",
                    moe.num_experts, moe.num_groups, moe.top_groups, moe.top_k));
  }
}

MoeConfig read_moe(const ConfigObject& object, const Defaults& defaults) {
  MoeConfig moe;
  moe.num_experts =
      read_size(object, choose_present_key(object, "n_routed_experts", "num_local_experts"),
                defaults.num_experts);
  moe.top_k = read_size(object, "num_experts_per_tok", defaults.top_k);
  moe.expert_width = read_size(object, "moe_intermediate_size", defaults.expert_width);
  const int64_t shared = object.integer("n_shared_experts", 1);
  if (shared < 0 || shared > 1024) object.fail("n_shared_experts must be 0 to 1024");
  moe.shared_width = shared * moe.expert_width;
  moe.router = RouterKind::kSigmoid;
  moe.norm_topk = object.boolean("norm_topk_prob", true);
  moe.num_groups = read_size(object, "n_group", defaults.num_groups);
  moe.top_groups = read_size(object, "topk_group", defaults.top_groups);
  moe.scale = object.number("routed_scaling_factor", defaults.scale);
  check_groups(object, moe);
  return moe;
}

// Without shared experts transformers has their module all the same, of width zero.
void add_empty_shared_experts(int64_t layer, ModelConfig& config) {
  const std::string prefix = fmt::format("model.layers.{}.mlp.shared_experts.", layer);
  const int64_t d = config.hidden_size;
  config.empty_tensors.push_back({prefix + "gate_proj.weight", {0, d}});
  config.empty_tensors.push_back({prefix + "up_proj.weight", {0, d}});
  config.empty_tensors.push_back({prefix + "down_proj.weight", {d, 0}});
}

int64_t read_num_mtp_layers(const ConfigObject& object) {
  const int64_t count =
      object.integer(choose_present_key(object, "num_nextn_predict_layers", "num_mtp_layers"), 1);
  if (count < 0 || count > 1000) {
    object.fail(fmt::format("num_nextn_predict_layers: got {}, want 0 to 1000", count));
  }
  return count;
}

void read_deepseek_v3(const ConfigObject& object, const DecoderKeys& keys, ModelConfig& config) {
  const Defaults& defaults = config.architecture == kGlmLite ? kGlmDefaults : kDeepseekDefaults;
  config.rms_norm_eps = object.number("rms_norm_eps", defaults.rms_norm_eps);
  auto [mla, rope] = read_attention_and_rope(object, defaults, keys);
  mla.rope = config.find_or_add_rope({rope, mla.rope_dim});
  const Block attention(kMla, mla);
  const LayerConfig dense = make_pre_norm_layer(
      config, attention, Block(kGatedMlp, GatedMlpConfig{.width = keys.intermediate_size}));
  std::optional<MoeConfig> moe;
  for (const bool is_dense : read_dense_layers(object, keys, defaults)) {
    if (!is_dense && !moe) moe = read_moe(object, defaults);
    if (!is_dense && moe->shared_width == 0) add_empty_shared_experts(config.num_layers(), config);
    config.layers.push_back(is_dense ? dense
                                     : make_pre_norm_layer(config, attention, Block(kMoe, *moe)));
  }
  config.num_mtp_layers = read_num_mtp_layers(object);
}

}  // namespace

extern const Family kDeepseekV3Family = {.name = "deepseek_v3",
                                         .architectures = kArchitectures,
                                         .read_keys = kRead,
                                         .inert_keys = kInert,
                                         .neutral_keys = kNeutral,
                                         .read = read_deepseek_v3};

}  // namespace strata::model
