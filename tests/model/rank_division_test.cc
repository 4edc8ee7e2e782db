// SPDX-License-Identifier: Apache-2.0
// Which ranks can divide a model, by its rows: of every family what divides it, what does not with
// all numbers, and what stays whole on each rank.
#include "model/weights/rank_division.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include "model/config.h"
#include "tests/base/temp_dir.h"

namespace strata::model {
namespace {

using strata::testing::error_of;

ModelConfig golden(const std::string& name) {
  return load_config(std::string(STRATA_SOURCE_DIR) + "/tests/golden/" + name + "/model", false)
      .config;
}

std::string fault(const ModelConfig& config, const RankDivision& ranks) {
  return error_of([&] { check_division(LayerTable(config), ranks); });
}

TEST(RankDivision, ModelsDivideByWhatAllTheirRowsHave) {
  const std::pair<const char*, RankDivision> divisions[] = {
      {"llama2", {}},
      {"llama2", {.tensor = 2}},
      {"llama2", {.tensor = 4}},
      {"qwen2", {.tensor = 2}},
      {"gemma3", {.tensor = 2}},
      {"qwen3_moe", {.expert = 6, .tensor = 2}},
      {"qwen3_moe", {.expert = 3}},
      {"deepseek_mla", {.tensor = 4}},
      {"deepseek_moe", {.expert = 8, .tensor = 4}},
      {"deepseek_v4", {.expert = 2, .tensor = 2}},
      {"qwen3_5", {.tensor = 2}},
      {"lfm2", {.tensor = 2}},
      {"qwen3_5_moe", {.expert = 3, .tensor = 2}},
      {"qwen3_next", {.expert = 3, .tensor = 2}},
      {"qwen3", {.tensor = 3}},
      {"qwen3_moe", {.expert = 2, .tensor = 4}},
      {"zero_layers", {.tensor = 9}}};
  for (const auto& [name, ranks] : divisions) {
    EXPECT_EQ(fault(golden(name), ranks), "") << name << ' ' << ranks.expert << ' ' << ranks.tensor;
  }
}

TEST(RankDivision, OthersAreRefusedWithAllNumbers) {
  struct Case {
    const char* golden;
    RankDivision ranks;
    const char* want;
  };
  const Case cases[] = {
      {"llama2",
       {.tensor = 3},
       "--ranks tensor=3: layer 0, self_attn.q_proj.weight: 4 heads along its outputs are no "
       "multiple of 3; want a divisor of 4, which every row of the model has"},
      {"llama2", {.expert = 2}, "--ranks expert=2: the model has no experts"},
      {"qwen3",
       {.tensor = 2},
       "--ranks tensor=2: layer 0, self_attn.k_proj.weight: 3 key/value heads along its outputs "
       "are no multiple of 2; want 3 or 6, by which every row of the model divides"},
      {"qwen3_moe",
       {.expert = 7, .tensor = 2},
       "--ranks expert=7: layer 0, mlp.experts.*.gate_proj.weight: 6 experts are fewer than the "
       "ranks; want at most 6"},
      {"deepseek_mla",
       {.tensor = 8},
       "--ranks tensor=8: layer 0, self_attn.q_b_proj.weight: 4 heads along its outputs are no "
       "multiple of 8; want a divisor of 4, which every row of the model has"},
      {"deepseek_moe",
       {.expert = 16},
       "--ranks expert=16: layer 1, mlp.experts.*.gate_proj.weight: 8 experts are fewer than the "
       "ranks; want at most 8"},
      {"deepseek_v4",
       {.tensor = 4},
       "--ranks tensor=4: layer 0, self_attn.o_a_proj.weight: 2 groups of heads along its outputs "
       "are no multiple of 4; want a divisor of 2, which every row of the model has"},
      {"qwen3_5",
       {.tensor = 4},
       "--ranks tensor=4: layer 0, linear_attn.conv1d.weight: 2 key heads along its outputs are no "
       "multiple of 4; want a divisor of 2, which every row of the model has"},
      {"zero_layers",
       {.tensor = 10},
       "--ranks tensor=10: model.embed_tokens.weight: 9 groups of 16 tokens along its outputs are "
       "fewer than 10 ranks"}};
  for (const Case& c : cases) EXPECT_EQ(fault(golden(c.golden), c.ranks), c.want);
}

// That of multi-token prediction among them.
TEST(RankDivision, EveryLayerCounts) {
  ModelConfig config = golden("deepseek_v4_mtp");
  config.layers.clear();
  config.use_mtp = true;
  EXPECT_EQ(fault(config, {.expert = 7}).substr(0, 55),
            "--ranks expert=7: layer 0, mlp.experts.*.gate_proj.weig");
  const ModelConfig mixed = golden("qwen3_moe");
  ModelConfig turned = mixed;
  std::swap(turned.layers[0], turned.layers[1]);
  EXPECT_EQ(fault(turned, {.expert = 7}).substr(0, 26), "--ranks expert=7: layer 1,");
}

// Matrices that are not named here have an axis, which their units fill.
TEST(RankDivision, FewMatricesStayWhole) {
  const std::set<std::string> whole = {"self_attn.q_a_proj.weight",
                                       "self_attn.kv_a_proj_with_mqa.weight",
                                       "self_attn.kv_proj.weight",
                                       "self_attn.compressor.kv_proj.weight",
                                       "self_attn.compressor.gate_proj.weight",
                                       "self_attn.compressor.indexer.kv_proj.weight",
                                       "self_attn.compressor.indexer.gate_proj.weight",
                                       "self_attn.compressor.indexer.q_b_proj.weight",
                                       "self_attn.compressor.indexer.scorer.weights_proj.weight",
                                       "mlp.gate.weight",
                                       "mlp.shared_expert_gate.weight",
                                       "e_proj.weight",
                                       "fc.weight",
                                       "h_proj.weight"};
  std::set<std::string> seen;
  const auto look = [&](const ParamRow& row) {
    const std::string name(row.suffix);
    const RowShards& shards = row.shards;
    if (shards.axis == ShardAxis::kNone && row.is_matrix()) seen.insert(name);
    if (shards.axis == ShardAxis::kNone) return;
    const int axis = shards.axis == ShardAxis::kOutputs ? 0 : row.shape.rank() - 1;
    ASSERT_GT(shards.units, 0) << name;
    const int64_t width = shards.width > 0 ? shards.width : row.shape[axis] / shards.units;
    EXPECT_EQ((row.shape[axis] + width - 1) / width, shards.units) << name;
    EXPECT_FALSE(shards.unit.empty()) << name;
  };
  for (const char* name :
       {"llama2",      "llama_bias_f16",  "qwen2",        "qwen3",         "gemma3",
        "ministral",   "qwen3_moe",       "deepseek_mla", "deepseek_moe",  "glm4_moe_lite",
        "deepseek_v4", "deepseek_v4_mtp", "qwen3_5",      "qwen3_5_moe",   "lfm2",
        "qwen3_next",  "gemma4",          "gemma4_moe",   "gemma4_shared", "llama4"}) {
    SCOPED_TRACE(name);
    ModelConfig config = golden(name);
    config.use_mtp = config.mtp_layer.has_value();
    const LayerTable table(config);
    for (const ParamRow& row : table.vocabulary_rows()) look(row);
    EXPECT_EQ(table.vocabulary_rows().size(), config.tie_word_embeddings ? 1U : 2U);
    for (const LayerStack& stack : table.stacks()) {
      for (size_t s = 0; s < stack.rows.size(); ++s) {
        const SublayerRows& rows = stack.rows[s];
        for (const ParamRow& row : rows.outer) EXPECT_EQ(row.shards.axis, ShardAxis::kNone);
        for (const ParamRow& row : rows.inner) look(row);
        for (const ParamRow& row : rows.inner) {
          if (row.bias == kNoKey) continue;
          const auto bias =
              std::find_if(rows.inner.begin(), rows.inner.end(),
                           [&](const ParamRow& other) { return other.key == row.bias; });
          // Ranks have all of it, and add what is of their outputs.
          if (stack.config[s].block.divides()) {
            EXPECT_EQ(bias->shards.axis, ShardAxis::kNone) << row.suffix;
          }
        }
      }
    }
  }
  EXPECT_EQ(seen, whole);
}

}  // namespace
}  // namespace strata::model
