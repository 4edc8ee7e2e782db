// SPDX-License-Identifier: Apache-2.0
// What the reader of DeepSeek-V4 makes of its config: schedules in every form, two rotary tables,
// defaults, and what it refuses.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "model/blocks/compressed/compressed_attention.h"
#include "model/blocks/experts/moe.h"
#include "model/cache_layout.h"
#include "model/config.h"
#include "model/weights/init.h"
#include "model/weights/load.h"
#include "model/weights/save.h"
#include "ops/cpu/cpu_backend.h"
#include "tests/base/temp_dir.h"

namespace strata::model {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A small config; keys of `extra` come last.
std::string v4(const std::string& extra, int64_t num_layers = 5) {
  return R"({"architectures": ["DeepseekV4ForCausalLM"], "vocab_size": 50, "hidden_size": 16,
             "num_attention_heads": 4, "head_dim": 16, "q_lora_rank": 8, "o_groups": 2, "o_lora_rank": 4,
             "n_routed_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 8,
             "index_n_heads": 3, "index_head_dim": 8, "index_topk": 5, "num_hidden_layers": )" +
         std::to_string(num_layers) + (extra.empty() ? "" : ", " + extra) + "}";
}

ModelConfig parse(const std::string& text) {
  return parse_config(text, "dir/config.json", true).config;
}

std::string message_of(const std::string& text) {
  try {
    parse(text);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

const CompressedAttentionConfig& attention(const ModelConfig& config, int64_t layer) {
  return *config.find_block_config<CompressedAttentionConfig>(layer, kCompressedAttention);
}

std::vector<int64_t> ratios(const ModelConfig& config) {
  std::vector<int64_t> all;
  for (int64_t i = 0; i < config.num_layers(); ++i) all.push_back(attention(config, i).ratio);
  return all;
}

std::vector<bool> tables(const ModelConfig& config) {
  std::vector<bool> all;
  for (int64_t i = 0; i < config.num_layers(); ++i) {
    all.push_back(config.find_block_config<MoeConfig>(i, kMoe)->router == RouterKind::kTable);
  }
  return all;
}

constexpr const char* kRope = R"("qk_rope_head_dim": 4)";

std::string with_rope(const std::string& extra) {
  return std::string(kRope) + (extra.empty() ? "" : ", " + extra);
}

TEST(DeepseekV4, SchedulesInEveryForm) {
  // Neither list: the larger model's pattern, and three tables.
  const ModelConfig plain = parse(v4(with_rope("")));
  EXPECT_THAT(ratios(plain), ElementsAre(128, 128, 128, 4, 128));
  EXPECT_THAT(tables(plain), ElementsAre(true, true, true, false, false));
  // The published form, whose lists go on to the layer of multi-token prediction.
  const ModelConfig published =
      parse(v4(with_rope(R"("compress_ratios": [0, 0, 4, 128, 4, 0], "num_hash_layers": 1)")));
  EXPECT_THAT(ratios(published), ElementsAre(0, 0, 4, 128, 4));
  EXPECT_THAT(tables(published), ElementsAre(true, false, false, false, false));
  const ModelConfig named = parse(v4(
      with_rope(
          R"("layer_types": ["sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention"],
             "mlp_layer_types": ["moe", "hash_moe", "moe"],
             "compress_rates": {"compressed_sparse_attention": 3, "heavily_compressed_attention": 9})"),
      3));
  EXPECT_THAT(ratios(named), ElementsAre(0, 3, 9));
  EXPECT_THAT(tables(named), ElementsAre(false, true, false));
  EXPECT_EQ(ratios(parse(v4(with_rope(""), 0))).size(), 0u);
}

TEST(DeepseekV4, DefaultsAreHuggingFaces) {
  const ModelConfig config = parse(R"({"architectures": ["DeepseekV4ForCausalLM"]})");
  EXPECT_EQ(config.num_layers(), 43);
  EXPECT_EQ(config.streams->count(), 4);
  EXPECT_EQ(config.state_width(), 4 * 4096);
  const CompressedAttentionConfig& sparse = attention(config, 3);
  EXPECT_EQ(sparse.rope_dim, 64);
  EXPECT_EQ(sparse.window, 128);
  EXPECT_EQ(sparse.top_k, 512);
  EXPECT_TRUE(sparse.overlap);
  EXPECT_FALSE(attention(config, 0).overlap);
  const auto& moe = *config.find_block_config<MoeConfig>(4, kMoe);
  EXPECT_EQ(moe.clamp.limit, 10.0f);
  EXPECT_EQ(moe.scale, 1.5);
}

// The layer behind the last of the lists, sliding and scored unless they say otherwise; one alone.
TEST(DeepseekV4, MultiTokenPredictionIsTheNextLayer) {
  const auto type = [](const ModelConfig& config) {
    const LayerConfig& layer = config.mtp_layer.value();
    EXPECT_EQ(layer.size(), 3u);
    EXPECT_EQ(layer[2].block.config_of<MoeConfig>(kMoe)->router, RouterKind::kSqrtSoftplus);
    return layer[1].block.config_of<CompressedAttentionConfig>(kCompressedAttention)->ratio;
  };
  const auto with = [](const char* ratios, const char* more = "") {
    return parse(
        v4(with_rope(fmt::format(R"("compress_ratios": {}, "num_hash_layers": 3{})", ratios, more)),
           2));
  };
  EXPECT_EQ(type(with("[0, 4, 0]")), 0);
  EXPECT_EQ(type(with("[0, 4]")), 0);
  EXPECT_EQ(type(with("[0, 4, 128]")), 128);
  EXPECT_FALSE(with("[0, 4, 0]").use_mtp);
  EXPECT_EQ(with("[0, 4, 0]").num_layers(), 2);
  EXPECT_FALSE(with("[0, 4, 0]", R"(, "num_nextn_predict_layers": 0)").mtp_layer);
  EXPECT_FALSE(with("[0, 4, 0]", R"(, "num_nextn_predict_layers": 2)").mtp_layer);
  EXPECT_THAT(message_of(v4(with_rope(R"("num_nextn_predict_layers": -1)"))),
              HasSubstr("num_nextn_predict_layers: got -1, want 0 or more"));
}

// DeepSeek-V4-Flash by hand: of a token 4-token entries of 512 and keys of 128, and 128-token
// entries; once, rings of 128 keys and the compressors' open windows of values and gates in fp32.
TEST(DeepseekV4, ASequenceKeepsWhatTheFormulaSays) {
  std::string ratios = "0, 0";
  for (int i = 0; i < 20; ++i) ratios += ", 4, 128";
  const ModelConfig flash = parse(fmt::format(
      R"({{"architectures": ["DeepseekV4ForCausalLM"], "compress_ratios": [{}, 4, 0]}})", ratios));
  const CacheLayout layout(flash, DType::kBF16, 128);
  EXPECT_EQ(layout.position_bytes(), 21 * (2 * 512 / 4 + 2 * 128 / 4) + 20 * 2 * 512 / 128);
  const int64_t rings = 43 * 128 * 512 * 2;
  const int64_t heavy = 20 * 128 * 2 * 512 * 4;
  const int64_t sparse = 21 * 8 * 2 * (1024 + 256) * 4;
  EXPECT_EQ(layout.state_bytes(), rings + heavy + sparse);
}

// Sliding layers turn by one table, the others by one of another theta and a scaling; neither has a
// magnitude factor.
TEST(DeepseekV4, TwoRotaryTables) {
  const std::string yarn =
      R"("factor": 16, "original_max_position_embeddings": 64, "beta_fast": 32, "beta_slow": 1)";
  const std::string layers = R"("compress_ratios": [0, 4, 128, 0, 4], )";
  const ModelConfig old_form =
      parse(v4(with_rope(layers + R"("rope_scaling": {"type": "yarn", )" + yarn + "}")));
  const ModelConfig new_form = parse(
      v4(with_rope(layers +
                   R"("rope_parameters": {"main": {"rope_type": "default", "rope_theta": 10000.0},
         "compress": {"rope_type": "yarn", "rope_theta": 160000.0, "attention_factor": 1.0, )" +
                   yarn + "}}")));
  for (const ModelConfig* config : {&old_form, &new_form}) {
    ASSERT_EQ(config->ropes.size(), 2u);
    EXPECT_EQ(attention(*config, 0).rope, attention(*config, 3).rope);
    EXPECT_EQ(attention(*config, 1).rope, attention(*config, 2).rope);
    const RopeConfig& sliding =
        config->ropes[static_cast<size_t>(attention(*config, 0).rope)].config;
    const RopeConfig& compressed =
        config->ropes[static_cast<size_t>(attention(*config, 1).rope)].config;
    EXPECT_EQ(sliding.theta, 10000.0);
    EXPECT_EQ(sliding.type, RopeType::kDefault);
    EXPECT_EQ(compressed.theta, 160000.0);
    EXPECT_EQ(compressed.type, RopeType::kYarn);
    EXPECT_EQ(rope_attention_factor(compressed), 1.0);
  }
  EXPECT_EQ(old_form.ropes, new_form.ropes);
}

TEST(DeepseekV4, WhatIsNotThisModelIsRefusedByName) {
  EXPECT_THAT(message_of(v4(with_rope(R"("scoring_func": "softmax")"))), HasSubstr("scoring_func"));
  EXPECT_THAT(message_of(v4(with_rope(R"("num_key_value_heads": 2)"))),
              HasSubstr("num_key_value_heads: got 2"));
  EXPECT_THAT(message_of(v4(with_rope(R"("n_shared_experts": 2)"))),
              HasSubstr("n_shared_experts: got 2"));
  EXPECT_THAT(message_of(v4(with_rope(R"("compress_ratios": [0, 0, 8, 0, 0])"))),
              HasSubstr("compress_ratios: got 8"));
  EXPECT_THAT(message_of(v4(with_rope(R"("compress_ratios": [0, 4])"))),
              HasSubstr("compress_ratios: got 2 layers, num_hidden_layers is 5"));
  EXPECT_THAT(message_of(v4(with_rope(R"("layer_types": ["full_attention"])"), 1)),
              HasSubstr("layer_types: got 'full_attention'"));
  EXPECT_THAT(message_of(v4(with_rope(R"("hc_mult": 9)"))), HasSubstr("hc_mult: got 9"));
  EXPECT_THAT(message_of(v4(with_rope(R"("hc_sinkhorn_iters": 0)"))),
              HasSubstr("hc_sinkhorn_iters: got 0"));
  EXPECT_THAT(message_of(v4(with_rope(R"("swiglu_limit": 0)"))), HasSubstr("swiglu_limit"));
  EXPECT_THAT(message_of(v4(with_rope(R"("attention_bias": true)"))), HasSubstr("attention_bias"));
  EXPECT_THAT(message_of(v4(R"("qk_rope_head_dim": 5)")), HasSubstr("qk_rope_head_dim: got 5"));
  EXPECT_THAT(message_of(v4(R"("qk_rope_head_dim": 4, "partial_rotary_factor": 0.5)")),
              HasSubstr("disagree"));
  const std::string factor =
      R"("rope_scaling": {"type": "yarn", "factor": 16, "attention_factor": 1.277})";
  EXPECT_THAT(message_of(v4(with_rope(factor))), HasSubstr("attention_factor"));
  // What transformers multiplies by where it fills in no factor of 1.
  for (const char* unsaid :
       {R"("rope_scaling": {"type": "yarn", "factor": 16, "attention_factor": null})",
        R"("rope_parameters": {"main": {"rope_type": "default"},
           "compress": {"rope_type": "yarn", "factor": 16}})"}) {
    EXPECT_THAT(message_of(v4(with_rope(unsaid))), HasSubstr("transformers takes 1.277"));
  }
  std::string groups = v4(with_rope(""));
  groups.replace(groups.find(R"("o_groups": 2)"), 13, R"("o_groups": 3)");
  EXPECT_THAT(message_of(groups), HasSubstr("o_groups: got 3"));
  EXPECT_THAT(message_of(v4(with_rope(R"("num_local_experts": 8)"))),
              HasSubstr("n_routed_experts 6 and num_local_experts 8 disagree"));
}

// Entries lie in pages at their ratio; the ring and the open windows belong to the sequence.
TEST(DeepseekV4, ItsSuccessorIsRefusedByName) {
  const std::string text = v4(with_rope(""));
  EXPECT_THAT(message_of(R"({"model_type": "deepseek_v41", )" + text.substr(1)),
              HasSubstr("DeepSeek-V4.1 is another model"));
  std::string other = text;
  other.replace(other.find("DeepseekV4For"), 13, "DeepseekV41For");
  EXPECT_THAT(message_of(other), HasSubstr("DeepSeek-V4.1 is another model"));
  EXPECT_EQ(message_of(R"({"model_type": "deepseek_v4", )" + text.substr(1)), "");
}

// A new model's tables: different experts in a row, each expert as often as any other.
TEST(DeepseekV4, NewTablesAreBalanced) {
  const ModelConfig config = parse(v4(with_rope(R"("num_hash_layers": 2)")));
  CpuBackend backend(choose_cpu_path(), 2);
  const auto tables_of = [&](uint64_t seed) {
    const LoadedModel model = init_model(backend, config, DType::kF32, seed);
    std::vector<std::vector<float>> tables;
    for (size_t index = 0; index < model.weights->table().size(); ++index) {
      const Parameter& parameter = model.weights->table()[index];
      if (!parameter.name.ends_with("tid2eid")) continue;
      const HostAccess access(backend.allocator());
      const Scratch::Mark mark(backend.scratch());
      const TensorView rows = backend.scratch().take(DType::kF32, {1, parameter.num_cols()});
      model.weights->read_rows(backend, index, 0, rows);
      tables.emplace_back(rows.f32(), rows.f32() + parameter.num_cols());
    }
    return tables;
  };
  const auto tables = tables_of(7);
  ASSERT_EQ(tables.size(), 2u);
  EXPECT_EQ(tables, tables_of(7));
  EXPECT_NE(tables, tables_of(8));
  EXPECT_NE(tables[0], tables[1]);
  for (const std::vector<float>& table : tables) {
    ASSERT_EQ(table.size(), 50u * 2u);
    std::vector<int> uses(6);
    for (size_t row = 0; row < 50; ++row) {
      EXPECT_NE(table[2 * row], table[2 * row + 1]);
      for (const size_t i : {2 * row, 2 * row + 1}) ++uses.at(static_cast<size_t>(table[i]));
    }
    for (const int count : uses) EXPECT_TRUE(count == 16 || count == 17) << count;
  }
}

// ... and they are written as whole numbers, which the loader takes.
TEST(DeepseekV4, NewTablesComeBackFromFiles) {
  const std::string text = v4(with_rope(R"("num_hash_layers": 2)"));
  CpuBackend backend(choose_cpu_path(), 2);
  const LoadedModel made = init_model(backend, parse(text), DType::kF32, 7);
  testing::TempDir dir;
  save_model(backend, made, dir.path(), nullptr, DType::kF32);
  testing::write_bytes(dir.file("config.json"), text);
  const LoadedModel loaded = load_model(backend, dir.path(), {.compute_dtype = DType::kF32});
  ASSERT_EQ(loaded.weights->table().size(), made.weights->table().size());
  int num_tables = 0;
  for (size_t index = 0; index < made.weights->table().size(); ++index) {
    const Parameter& parameter = made.weights->table()[index];
    num_tables += parameter.name.ends_with("tid2eid") ? 1 : 0;
    const HostAccess access(backend.allocator());
    const Scratch::Mark mark(backend.scratch());
    const Shape shape = {parameter.num_rows(), parameter.num_cols()};
    const TensorView want = backend.scratch().take(DType::kF32, shape);
    const TensorView got = backend.scratch().take(DType::kF32, shape);
    made.weights->read_rows(backend, index, 0, want);
    loaded.weights->read_rows(backend, index, 0, got);
    EXPECT_TRUE(std::equal(want.f32(), want.f32() + shape.num_elements(), got.f32()))
        << parameter.name;
  }
  EXPECT_EQ(num_tables, 2);
}

TEST(DeepseekV4, CacheHoldsEntriesAtTheirRatio) {
  const ModelConfig config =
      parse(v4(with_rope(R"("compress_ratios": [0, 4, 128], "sliding_window": 8)"), 3));
  const CacheLayout layout(config, DType::kBF16, 64);
  EXPECT_EQ(layout.page_size(), 128);  // what both ratios divide
  EXPECT_EQ(layout.page_bytes(), 128 / 4 * (16 + 8) * 2 + 16 * 2);
  const int64_t ring = 8 * 16 * 2;
  const int64_t sparse = 8 * 2 * 32 * 4 + 8 * 2 * 16 * 4;
  const int64_t heavy = 128 * 2 * 16 * 4;
  EXPECT_EQ(layout.state_bytes(), 3 * ring + sparse + heavy);
  EXPECT_EQ(layout.first_needed(1000), 0);
}

}  // namespace
}  // namespace strata::model
