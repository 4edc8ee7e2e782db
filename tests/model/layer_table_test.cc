// Where layers live: every layer is in exactly one stack, at the place the table says; mixed models
// keep their global indices.
#include "model/layer_table.h"

#include <gtest/gtest.h>

#include "model/weights.h"

namespace strata::model {
namespace {

constexpr LayerKind kDenseLayer{};
constexpr LayerKind kSparseLayer{.attention = AttentionKind::kGqa, .mlp = MlpKind::kMoe};

ModelConfig small_config(int64_t num_layers) {
  ModelConfig config;
  config.family = "qwen3";
  config.vocab_size = 7;
  config.hidden_size = 4;
  config.intermediate_size = 6;
  config.num_layers = num_layers;
  config.num_heads = 2;
  config.num_kv_heads = 1;
  config.head_dim = 2;
  config.moe = {.num_experts = 3, .top_k = 2, .expert_width = 5};
  return config;
}

TEST(LayerTable, WithoutKindsAllLayersShareOneStack) {
  const LayerTable table(small_config(3));
  ASSERT_EQ(table.stacks().size(), 1U);
  EXPECT_EQ(table.stacks()[0].layers, (std::vector<int64_t>{0, 1, 2}));
  EXPECT_EQ(table.at(2).index, 2);
  EXPECT_EQ(LayerTable(small_config(0)).stacks().size(), 0U);
}

TEST(LayerTable, MixedLayersKeepTheirGlobalIndices) {
  ModelConfig config = small_config(5);
  config.layer_kinds = {kDenseLayer, kSparseLayer, kDenseLayer, kSparseLayer, kSparseLayer};
  const LayerTable table(config);
  ASSERT_EQ(table.stacks().size(), 2U);
  EXPECT_EQ(table.stacks()[0].layers, (std::vector<int64_t>{0, 2}));
  EXPECT_EQ(table.stacks()[1].layers, (std::vector<int64_t>{1, 3, 4}));
  for (int64_t layer = 0; layer < 5; ++layer) {
    const LayerPlace& place = table.at(layer);
    const LayerStack& stack = table.stacks()[static_cast<size_t>(place.stack)];
    EXPECT_EQ(stack.layers[static_cast<size_t>(place.index)], layer);
    EXPECT_EQ(stack.kind, config.layer_kind(layer));
  }
}

// Sparse layers have experts and no dense MLP; experts of a layer lie one behind the other.
TEST(LayerTable, WeightsFollowTheKinds) {
  ModelConfig config = small_config(3);
  config.layer_kinds = {kSparseLayer, kDenseLayer, kSparseLayer};
  const ModelWeights weights(config, DType::kF32, 16);
  EXPECT_EQ(weights.layer_index(0, LayerParam::kGateProj), ModelWeights::npos);
  EXPECT_EQ(weights.layer_index(1, LayerParam::kExpertGate), ModelWeights::npos);
  EXPECT_EQ(weights.table()[weights.layer_index(1, LayerParam::kDownProj)].name,
            "model.layers.1.mlp.down_proj.weight");
  const size_t first = weights.layer_index(2, LayerParam::kExpertDown);
  const LayerWeights& layer = weights.layer(2);
  for (int64_t e = 0; e < 3; ++e) {
    const Parameter& parameter = weights.table()[first + static_cast<size_t>(e)];
    EXPECT_EQ(parameter.name,
              "model.layers.2.mlp.experts." + std::to_string(e) + ".down_proj.weight");
    EXPECT_EQ(parameter.layer, 2);
    EXPECT_EQ(parameter.expert, e);
    EXPECT_EQ(parameter.panel.data, layer.expert_panel(LayerParam::kExpertDown, e).data);
  }
  const auto* down = static_cast<char*>(layer.panel(LayerParam::kExpertDown).data);
  EXPECT_EQ(static_cast<char*>(layer.expert_panel(LayerParam::kExpertDown, 2).data) - down,
            2 * 16 * 5 * 4);
}

}  // namespace
}  // namespace strata::model
