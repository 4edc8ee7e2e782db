// SPDX-License-Identifier: Apache-2.0
// Where layers live: every layer is in exactly one stack, at the place the table says; mixed models
// keep their global indices.
#include "model/weights/layer_table.h"

#include <gtest/gtest.h>

#include "model/blocks/experts/moe.h"
#include "model/blocks/gated_mlp.h"
#include "model/blocks/gqa.h"
#include "model/families/family.h"
#include "model/weights/weights.h"
#include "ops/cpu/cpu_backend.h"

namespace strata::model {
namespace {

const Block kAttention(kGqa, GqaConfig{.num_heads = 2, .num_kv_heads = 1, .head_dim = 2});
const Block kDense(kGatedMlp, GatedMlpConfig{.width = 6});
const Block kSparse(kMoe, MoeConfig{.num_experts = 3, .top_k = 2, .expert_width = 5});

// A model whose layers have the MLPs given.
ModelConfig small_config(const std::vector<Block>& mlps) {
  ModelConfig config;
  config.family = "qwen3";
  config.vocab_size = 7;
  config.hidden_size = 4;
  config.ensure_rope({{}, 2});
  for (const Block& mlp : mlps)
    config.layers.push_back(make_pre_norm_layer(config, kAttention, mlp));
  return config;
}

TEST(LayerTable, EqualLayersShareOneStack) {
  // Configs of equal values, made apart.
  const Block same(kGatedMlp, GatedMlpConfig{.width = 6});
  const LayerTable table(small_config({kDense, same, kDense}));
  ASSERT_EQ(table.stacks().size(), 1U);
  EXPECT_EQ(table.stacks()[0].layers, (std::vector<int64_t>{0, 1, 2}));
  EXPECT_EQ(table.at(2).index, 2);
  EXPECT_EQ(LayerTable(small_config({})).stacks().size(), 0U);
  const Block wider(kGatedMlp, GatedMlpConfig{.width = 8});
  EXPECT_EQ(LayerTable(small_config({kDense, wider})).stacks().size(), 2U);
}

TEST(LayerTable, MixedLayersKeepTheirGlobalIndices) {
  const ModelConfig config = small_config({kDense, kSparse, kDense, kSparse, kSparse});
  const LayerTable table(config);
  ASSERT_EQ(table.stacks().size(), 2U);
  EXPECT_EQ(table.stacks()[0].layers, (std::vector<int64_t>{0, 2}));
  EXPECT_EQ(table.stacks()[1].layers, (std::vector<int64_t>{1, 3, 4}));
  for (int64_t layer = 0; layer < 5; ++layer) {
    const LayerPlace& place = table.at(layer);
    const LayerStack& stack = table.stacks()[static_cast<size_t>(place.stack)];
    EXPECT_EQ(stack.layers[static_cast<size_t>(place.index)], layer);
    EXPECT_TRUE(stack.config == config.layers[static_cast<size_t>(layer)]);
  }
}

const Parameter* find(const ModelWeights& weights, const std::string& name) {
  for (const Parameter& parameter : weights.table()) {
    if (parameter.name == name) return &parameter;
  }
  return nullptr;
}

// Sparse layers have experts and no dense MLP; experts of a layer lie one behind the other.
TEST(LayerTable, WeightsFollowTheBlocks) {
  const ModelConfig config = small_config({kSparse, kDense, kSparse});
  const ModelWeights weights(CpuBackend(CpuPath::kReference, 1), config, DType::kF32);
  EXPECT_EQ(find(weights, "model.layers.0.mlp.gate_proj.weight"), nullptr);
  EXPECT_EQ(find(weights, "model.layers.1.mlp.experts.0.gate_proj.weight"), nullptr);
  EXPECT_NE(find(weights, "model.layers.1.mlp.down_proj.weight"), nullptr);
  const BlockContext& experts = weights.layer(2)[1].inner;
  const PanelView first = experts.param(kMoeDown).panel;
  for (int64_t e = 0; e < 3; ++e) {
    const Parameter& parameter =
        weights.table()[experts.param(kMoeDown).index + static_cast<size_t>(e)];
    EXPECT_EQ(parameter.name,
              "model.layers.2.mlp.experts." + std::to_string(e) + ".down_proj.weight");
    EXPECT_EQ(parameter.layer, 2);
    EXPECT_EQ(parameter.expert, e);
    EXPECT_EQ(parameter.panel.data, expert_panel(first, e).data);
  }
  EXPECT_EQ(static_cast<char*>(expert_panel(first, 2).data) - static_cast<char*>(first.data),
            2 * 16 * 5 * 4);
}

// A module's place in an adapter is part of saved optimizer states.
TEST(LayerTable, TargetsComeInTheOrderOfSavedStates) {
  const Block shared(kMoe,
                     MoeConfig{.num_experts = 3, .top_k = 2, .expert_width = 5, .shared_width = 5});
  const LayerTable table(small_config({shared}));
  std::vector<std::string> paths;
  for (const LoraTarget& target : table.targets(0)) paths.push_back(target.path);
  EXPECT_EQ(paths,
            (std::vector<std::string>{"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj",
                                      "self_attn.o_proj", "mlp.shared_experts.gate_proj",
                                      "mlp.shared_experts.up_proj", "mlp.shared_experts.down_proj",
                                      "mlp.experts.gate_proj", "mlp.experts.up_proj",
                                      "mlp.experts.down_proj", "mlp.experts.gate_up_proj"}));
}

}  // namespace
}  // namespace strata::model
