// SPDX-License-Identifier: Apache-2.0
// Sources: HF modeling_deepseek_v3.py, configuration_deepseek_v3.py.
#include "model/families/deepseek_experts.h"

#include <fmt/format.h>

#include <optional>
#include <string>
#include <vector>

#include "model/blocks/gated_mlp.h"

namespace strata::model {
namespace {

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
                                    const DeepseekExpertDefaults& defaults) {
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

}  // namespace

MoeConfig read_deepseek_experts(const ConfigObject& object,
                                const DeepseekExpertDefaults& defaults) {
  MoeConfig moe;
  moe.num_experts =
      read_size(object, choose_present_key(object, "n_routed_experts", "num_local_experts"),
                defaults.num_experts);
  moe.top_k = read_size(object, "num_experts_per_tok", defaults.top_k);
  moe.expert_width = read_size(object, "moe_intermediate_size", defaults.expert_width);
  const int64_t shared = object.integer("n_shared_experts", defaults.num_shared);
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

void add_deepseek_layers(const ConfigObject& object, const DecoderKeys& keys,
                         const DeepseekExpertDefaults& defaults, const Block& attention,
                         ModelConfig& config, ReadExperts read_experts) {
  const LayerConfig dense = make_pre_norm_layer(
      config, attention, Block(kGatedMlp, GatedMlpConfig{.width = keys.intermediate_size}));
  std::optional<MoeConfig> moe;
  for (const bool is_dense : read_dense_layers(object, keys, defaults)) {
    if (!is_dense && !moe) moe = read_experts(object, defaults);
    if (!is_dense && moe->shared_width == 0) add_empty_shared_experts(config.num_layers(), config);
    config.layers.push_back(is_dense ? dense
                                     : make_pre_norm_layer(config, attention, Block(kMoe, *moe)));
  }
  config.num_mtp_layers = read_num_mtp_layers(object);
}

}  // namespace strata::model
