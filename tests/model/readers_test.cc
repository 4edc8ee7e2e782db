// SPDX-License-Identifier: Apache-2.0
// What the readers of families make of keys that only they have; goldens hold the numbers. Defaults
// and rules are those of transformers' configuration classes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>

#include "base/error.h"
#include "model/blocks/experts/moe.h"
#include "model/blocks/gated_mlp.h"
#include "model/blocks/gqa.h"
#include "model/blocks/short_conv.h"
#include "model/config.h"
#include "model/connectors/pre_norm_add.h"
#include "model/weights/weights.h"
#include "tests/model/reader_case.h"

namespace strata::model {
namespace {

using testing::HasSubstr;

TEST(Readers, GraniteHasFourMultipliers) {
  const ModelConfig config = parse(config_text(
      "GraniteForCausalLM", "granite",
      R"("embedding_multiplier": 12, "attention_multiplier": 0.015625, "residual_multiplier": 0.22,
         "logits_scaling": 16)"));
  EXPECT_EQ(config.embedding_scale, 12.0);
  EXPECT_EQ(config.logit_map.scale, 1.0f / 16);
  EXPECT_EQ(attention(config, 0).scale, 0.015625f);
  for (const Sublayer& sublayer : config.layers[0]) {
    const auto* c = static_cast<const PreNormAddConfig*>(sublayer.connector.config());
    EXPECT_EQ(c->branch_scale, 0.22f);
  }
  // Without them all are 1, the scores' too.
  const ModelConfig plain = parse(config_text("GraniteForCausalLM", "granite", ""));
  EXPECT_EQ(attention(plain, 0).scale, 1.0f);
  EXPECT_TRUE(plain.logit_map.is_identity());
  EXPECT_THAT(message_of(config_text("GraniteForCausalLM", "granite", R"("logits_scaling": 0)")),
              HasSubstr("logits_scaling"));
}

std::vector<bool> rotating_layers(const std::string& extra) {
  const ModelConfig config = parse(config_text("SmolLM3ForCausalLM", "smollm3", extra));
  std::vector<bool> rotating;
  for (int64_t layer = 0; layer < config.num_layers(); ++layer)
    rotating.push_back(attention(config, layer).rope != kNoRope);
  return rotating;
}

TEST(Readers, SmolLm3RotatesWhatItsListSays) {
  EXPECT_EQ(rotating_layers(""), (std::vector<bool>{true, true, true, false, true}));
  EXPECT_EQ(rotating_layers(R"("no_rope_layer_interval": 2)"),
            (std::vector<bool>{true, false, true, false, true}));
  // 1 is of layers that rotate; the list may be longer than the model.
  EXPECT_EQ(rotating_layers(R"("no_rope_layers": [0, 1, 1, 0, 1, 0], "no_rope_layer_interval": 2)"),
            (std::vector<bool>{false, true, true, false, true}));
  EXPECT_THAT(message_of(config_text("SmolLM3ForCausalLM", "smollm3", R"("no_rope_layers": [])")),
              HasSubstr("no_rope_layers: got 0 layers, num_hidden_layers is 5"));
}

TEST(Readers, SmolLm3HasItsWindowWhereItDoesNotRotate) {
  const ModelConfig config = parse(config_text(
      "SmolLM3ForCausalLM", "smollm3", R"("use_sliding_window": true, "sliding_window": 7)"));
  EXPECT_EQ(attention(config, 2).window, 0);
  EXPECT_EQ(attention(config, 3).window, 7);
  // Switched on without one, there is none.
  const ModelConfig none =
      parse(config_text("SmolLM3ForCausalLM", "smollm3", R"("use_sliding_window": true)"));
  EXPECT_EQ(attention(none, 3).window, 0);
}

TEST(Readers, Ministral3ScalesQueriesByTheirPosition) {
  const ModelConfig config = parse(config_text("Ministral3ForCausalLM", "ministral3", ""));
  const GqaConfig& gqa = attention(config, 0);
  ASSERT_TRUE(gqa.query_rope.has_value());
  const RopeSpec& queries = config.ropes[static_cast<size_t>(*gqa.query_rope)];
  EXPECT_EQ(queries.config.factor, 16.0);
  EXPECT_EQ(rope_attention_factor(queries.config), 1.0);  // the ratio of two equal mscales
  EXPECT_EQ(queries.position_scale.at(16383), 1.0);
  EXPECT_DOUBLE_EQ(queries.position_scale.at(16384), 1.0 + 0.1 * std::log(2.0));
  EXPECT_DOUBLE_EQ(queries.position_scale.at(3 * 16384 + 5), 1.0 + 0.1 * std::log(4.0));
  EXPECT_EQ(config.ropes[static_cast<size_t>(gqa.rope)].position_scale.beta, 0.0);
  // Settings without a beta have none; mscale_all_dim 0 is as good as absent.
  const ModelConfig devstral = parse(config_text(
      "Ministral3ForCausalLM", "ministral3",
      R"("rope_parameters": {"rope_type": "yarn", "rope_theta": 1e6, "factor": 64.0, "beta_fast": 4,
         "original_max_position_embeddings": 4096, "mscale": 1.0, "mscale_all_dim": 0.0})"));
  EXPECT_FALSE(attention(devstral, 0).query_rope.has_value());
  EXPECT_NEAR(rope_attention_factor(devstral.ropes[0].config), 1.4158883, 1e-7);
}

TEST(Readers, Mistral3IsWhatItsTextPartIs) {
  const auto whole = [](const std::string& type) {
    return R"({"architectures": ["Mistral3ForConditionalGeneration"], "model_type": "mistral3",
               "vision_config": {}, "text_config": {"model_type": ")" +
           type + R"(", "vocab_size": 100, "hidden_size": 32, "intermediate_size": 48,
               "num_hidden_layers": 2, "num_attention_heads": 8, "sliding_window": null}})";
  };
  EXPECT_EQ(parse(whole("mistral")).family, "mistral");
  EXPECT_EQ(parse(whole("ministral3")).family, "ministral3");
  EXPECT_THAT(message_of(whole("llama")), HasSubstr("model_type says 'llama'"));
}

TEST(Readers, GemmaMeansTheTanhFormOfGelu) {
  const ModelConfig config = parse(config_text(
      "GemmaForCausalLM", "gemma", R"("hidden_act": "gelu", "hidden_activation": null)"));
  EXPECT_EQ(config.norm_offset, 1.0f);
  EXPECT_TRUE(config.rounds_embedding_scale);
  EXPECT_TRUE(config.tie_word_embeddings);
  EXPECT_EQ(attention(config, 0).head_dim, 256);
  EXPECT_THAT(message_of(config_text("GemmaForCausalLM", "gemma", R"("hidden_act": "silu")")),
              HasSubstr("hidden_act"));
}

// The width of the MLP of every layer.
int64_t lfm2_mlp_width(const std::string& extra) {
  const ModelConfig config = parse(config_text("Lfm2ForCausalLM", "lfm2", extra));
  return config.find_block_config<GatedMlpConfig>(0, kGatedMlp)->width;
}

TEST(Readers, Lfm2MakesTheWidthOfItsMlp) {
  EXPECT_EQ(lfm2_mlp_width(R"("block_ff_dim": 12288)"), 8192);
  EXPECT_EQ(lfm2_mlp_width(R"("block_ff_dim": 6656)"), 4608);
  EXPECT_EQ(lfm2_mlp_width(R"("block_multiple_of": 1)"), 32);  // two thirds of intermediate_size
  EXPECT_EQ(lfm2_mlp_width(R"("block_ff_dim": 50, "block_ffn_dim_multiplier": 1.3,
                              "block_multiple_of": 8)"),
            48);  // 33, 42.9, 42
  EXPECT_EQ(lfm2_mlp_width(R"("block_ff_dim": 50, "block_ffn_dim_multiplier": null)"), 33);
  EXPECT_EQ(lfm2_mlp_width(R"("block_ff_dim": 50, "block_auto_adjust_ff_dim": false)"), 50);
  for (const char* factor : {"0", "-1", "1e-9", "1e30"}) {
    EXPECT_THAT(message_of(config_text("Lfm2ForCausalLM", "lfm2",
                                       std::string(R"("block_ffn_dim_multiplier": )") + factor)),
                HasSubstr("block_ffn_dim_multiplier"));
  }
}

std::vector<bool> lfm2_convolutions(const std::string& extra) {
  const ModelConfig config = parse(config_text("Lfm2ForCausalLM", "lfm2", extra));
  std::vector<bool> found;
  for (int64_t layer = 0; layer < config.num_layers(); ++layer) {
    found.push_back(config.find_block_config<ShortConvConfig>(layer, kShortConv) != nullptr);
  }
  return found;
}

TEST(Readers, Lfm2HasConvolutionsWhereItSays) {
  EXPECT_EQ(lfm2_convolutions(R"("full_attn_idxs": [2, 4])"),
            (std::vector<bool>{true, true, false, true, false}));
  EXPECT_EQ(lfm2_convolutions(""), std::vector<bool>(5, false));
  EXPECT_EQ(lfm2_convolutions(R"("layer_types": ["conv", "full_attention", "conv", "conv", "conv"],
                                 "full_attn_idxs": [2])"),
            (std::vector<bool>{true, false, true, true, true}));
  EXPECT_THAT(message_of(config_text("Lfm2ForCausalLM", "lfm2", R"("full_attn_idxs": [5])")),
              HasSubstr("full_attn_idxs: got 5, num_hidden_layers is 5"));
  EXPECT_THAT(message_of(config_text("Lfm2ForCausalLM", "lfm2",
                                     R"("full_attn_idxs": [2], "conv_L_cache": 9)")),
              HasSubstr("conv_L_cache: got 9, want 1 to 8"));
}

TEST(Readers, Lfm2HasNamesOfItsOwnForWhatOthersHave) {
  const ModelConfig config = parse(config_text(
      "Lfm2ForCausalLM", "lfm2", R"("norm_eps": 0.001, "tie_embedding": false, "block_dim": 32)"));
  EXPECT_EQ(config.rms_norm_eps, 0.001);
  EXPECT_EQ(attention(config, 0).eps, 0.001);
  EXPECT_FALSE(config.tie_word_embeddings);
  EXPECT_EQ(config.ropes[0].config.theta, 1e6);
  const auto stored = [&](const char* name) { return config.names_in_files(name).front(); };
  EXPECT_EQ(stored("model.norm.weight"), "model.embedding_norm.weight");
  EXPECT_EQ(stored("model.layers.0.self_attn.q_norm.weight"),
            "model.layers.0.self_attn.q_layernorm.weight");
  EXPECT_EQ(stored("model.layers.0.mlp.up_proj.weight"), "model.layers.0.feed_forward.w3.weight");
  EXPECT_EQ(stored("model.layers.0.conv.out_proj.weight"), "model.layers.0.conv.out_proj.weight");
  // Its relatives are other models.
  EXPECT_THAT(message_of(config_text("Lfm2MoeForCausalLM", "lfm2_moe", "")),
              HasSubstr("LFM2 with experts is not supported"));
  EXPECT_THAT(message_of(config_text("Lfm3ForCausalLM", "lfm3", "")),
              HasSubstr("LFM3 is not supported"));
}

TEST(Readers, MixtralHasNoWindowUnlessItSaysSo) {
  const ModelConfig config = parse(config_text("MixtralForCausalLM", "mixtral", ""));
  EXPECT_EQ(attention(config, 0).window, 0);
  EXPECT_EQ(config.ropes[0].config.theta, 1e6);
  EXPECT_TRUE(config.find_block_config<MoeConfig>(0, kMoe)->norm_topk);
  EXPECT_EQ(
      attention(parse(config_text("MixtralForCausalLM", "mixtral", R"("sliding_window": 9)")), 0)
          .window,
      9);
  EXPECT_THAT(
      message_of(config_text("MixtralForCausalLM", "mixtral", R"("router_jitter_noise": 0.1)")),
      HasSubstr("router_jitter_noise"));
}

TEST(Readers, Glm45RotatesHalfOfEachHead) {
  const ModelConfig config = parse(config_text("Glm4MoeForCausalLM", "glm4_moe", ""));
  EXPECT_EQ(attention(config, 0).head_dim, 8);  // of the hidden size, where the file has none
  EXPECT_EQ(attention(config, 0).rotary_dim, 4);
  EXPECT_FALSE(attention(config, 0).qk_norm);
  EXPECT_EQ(config.find_block_config<MoeConfig>(0, kMoe), nullptr);  // one dense layer first
  EXPECT_EQ(config.find_block_config<MoeConfig>(1, kMoe)->num_experts, 128);
  EXPECT_EQ(config.num_mtp_layers, 1);
}

struct Olmo3Ropes {
  RopeConfig full, sliding;
};

Olmo3Ropes olmo3_ropes(const std::string& extra) {
  const ModelConfig config = parse(config_text("Olmo3ForCausalLM", "olmo3", extra));
  EXPECT_EQ(attention(config, 0).window, 4096);
  EXPECT_EQ(attention(config, 3).window, 0);
  return {config.ropes[static_cast<size_t>(attention(config, 3).rope)].config,
          config.ropes[static_cast<size_t>(attention(config, 0).rope)].config};
}

TEST(Readers, Olmo3ScalesItsFullLayersAlone) {
  const std::string yarn =
      R"({"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 8192)";
  // Of the older form; of one kind for all layers; and by kind.
  const Olmo3Ropes older = olmo3_ropes(R"("rope_theta": 1e5, "rope_scaling": )" + yarn + "}");
  EXPECT_EQ(older.full.type, RopeType::kYarn);
  EXPECT_EQ(older.full.theta, 1e5);
  EXPECT_EQ(older.sliding.type, RopeType::kDefault);
  EXPECT_EQ(older.sliding.theta, 5e5);
  const Olmo3Ropes flat = olmo3_ropes(R"("rope_parameters": )" + yarn + R"(, "rope_theta": 1e5})");
  EXPECT_EQ(flat.full.type, RopeType::kYarn);
  EXPECT_EQ(flat.sliding.type, RopeType::kDefault);
  EXPECT_EQ(flat.sliding.theta, 1e5);
  const Olmo3Ropes kinds = olmo3_ropes(R"("rope_parameters": {"full_attention": )" + yarn +
                                       R"(, "rope_theta": 1e5}, "sliding_attention": )"
                                       R"({"rope_type": "default", "rope_theta": 2e5}})");
  EXPECT_EQ(kinds.full.theta, 1e5);
  EXPECT_EQ(kinds.sliding.theta, 2e5);
}

TEST(Readers, KimiK2IsDeepSeekV3) {
  const ModelConfig config = parse(
      R"({"architectures": ["DeepseekV3ForCausalLM"], "model_type": "kimi_k2", "vocab_size": 100,
          "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
          "num_attention_heads": 4, "n_group": 1, "topk_group": 1, "n_routed_experts": 8,
          "num_experts_per_tok": 2, "rope_scaling": {"type": "yarn", "factor": 32.0,
          "beta_fast": 1.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0,
          "original_max_position_embeddings": 4096}})");
  EXPECT_EQ(config.family, "deepseek_v3");
}

TEST(Readers, DeepSeekV2ChoosesGroupsByTheirBestExpert) {
  const std::string keys = R"("num_experts_per_tok": 2, "n_routed_experts": 8, "n_group": 4,
                              "topk_group": 2, "routed_scaling_factor": 16)";
  const auto text = [&](const std::string& extra) {
    return R"({"architectures": ["DeepseekV2ForCausalLM"], "model_type": "deepseek_v2",
               "vocab_size": 100, "hidden_size": 32, "intermediate_size": 48,
               "num_hidden_layers": 2, "num_attention_heads": 4, )" +
           keys + extra + "}";
  };
  const ModelConfig groups = parse(text(R"(, "topk_method": "group_limited_greedy")"));
  const MoeConfig& moe = *groups.find_block_config<MoeConfig>(0, kMoe);
  EXPECT_EQ(moe.router, RouterKind::kSoftmax);
  EXPECT_EQ(moe.num_groups, 4);
  EXPECT_TRUE(moe.one_best);
  EXPECT_FALSE(moe.norm_topk);
  EXPECT_EQ(moe.scale, 16.0);
  // Without groups whatever the file says of them.
  EXPECT_EQ(parse(text("")).find_block_config<MoeConfig>(0, kMoe)->num_groups, 1);
  EXPECT_THAT(message_of(text(R"(, "norm_topk_prob": true)")), HasSubstr("norm_topk_prob"));
  EXPECT_THAT(message_of(text(R"(, "topk_method": "noaux_tc")")), HasSubstr("topk_method"));
}

// Heads of 8 columns, of which 6 are rotated.
std::string phi3(const std::string& scaling, const std::string& more = "") {
  return config_text("Phi3ForCausalLM", "phi3",
                     R"("max_position_embeddings": 131072, "partial_rotary_factor": 0.75,
                        "rope_scaling": {"short_factor": [1.0, 1.5, 2.0],
                                         "long_factor": [1.5, 8, 64], )" +
                         scaling + "}" + more);
}

TEST(Readers, Phi3HasAWindowWhereTheFileNamesOne) {
  const ModelConfig config = parse(
      config_text("Phi3ForCausalLM", "phi3", R"("sliding_window": 2047, "resid_pdrop": 0.0)"));
  EXPECT_EQ(attention(config, 4).window, 2047);
  EXPECT_TRUE(attention(config, 4).fused_qkv);
  EXPECT_EQ(config.context(), config.max_position_embeddings);
}

TEST(Readers, Phi3HasOneOfTwoTablesOfLongrope) {
  ModelConfig config = parse(phi3(R"("type": "longrope")"));
  ASSERT_EQ(config.ropes.size(), 1u);
  EXPECT_EQ(config.ropes[0].dim, 6);
  const auto expect_table = [&](const std::vector<double>& factors, int64_t context) {
    const std::vector<double> frequencies = rope_frequencies(config.ropes[0].config, 6);
    for (size_t i = 0; i < 3; ++i)
      EXPECT_DOUBLE_EQ(frequencies[i], std::pow(1e4, -static_cast<double>(i) / 3) / factors[i]);
    // Of both tables: sqrt(1 + ln 32 / ln 4096).
    EXPECT_NEAR(rope_attention_factor(config.ropes[0].config), 1.1902381, 5e-8);
    EXPECT_EQ(config.context(), context);
  };
  expect_table({1.0, 1.5, 2.0}, 4096);
  plan_positions(config, 4097);
  expect_table({1.5, 8, 64}, 131072);
  plan_positions(config, 4096);
  expect_table({1.0, 1.5, 2.0}, 4096);
  // Older names of it; and the original length that counts.
  for (const char* type : {R"("type": "su")", R"("type": "yarn")", R"("rope_type": "longrope")",
                           R"("type": "su", "rope_type": "longrope")"}) {
    EXPECT_EQ(parse(phi3(type)).ropes, config.ropes) << type;
  }
  EXPECT_EQ(parse(phi3(R"("type": "su")", R"(, "original_max_position_embeddings": 64)")).context(),
            64);
}

TEST(Readers, Phi3sLongropeHasAFactorOfCosAndSin) {
  const auto factor = [](const std::string& settings, const std::string& more = "") {
    return rope_attention_factor(parse(phi3(settings, more)).ropes[0].config);
  };
  EXPECT_EQ(factor(R"("type": "su", "attention_factor": 1.25)"), 1.25);
  EXPECT_EQ(factor(R"("type": "su")", R"(, "original_max_position_embeddings": 131072)"), 1.0);
  EXPECT_DOUBLE_EQ(factor(R"("type": "su", "factor": 4096)"), std::sqrt(2.0));
}

TEST(Readers, FaultsOfPhi3sLongropeAreNamed) {
  const auto message = [](const std::string& scaling) {
    return message_of(config_text("Phi3ForCausalLM", "phi3", R"("rope_scaling": )" + scaling));
  };
  EXPECT_THAT(message(R"({"type": "linear", "factor": 2.0})"),
              HasSubstr("rope type: got 'linear', supported are default and longrope"));
  EXPECT_THAT(message(R"({"type": "su", "short_factor": [1, 1, 1, 1]})"),
              HasSubstr("key 'long_factor': got nothing, want a list of numbers"));
  EXPECT_THAT(message(R"({"type": "su", "short_factor": [1, 1, 1, "a"], "long_factor": []})"),
              HasSubstr("key 'short_factor': got [1,1,1,\"a\"], want a list of numbers"));
  EXPECT_THAT(message(R"({"type": "su", "short_factor": [1, 1, 1, 1], "long_factor": [1, 1, 1]})"),
              HasSubstr("key 'long_factor' of RoPE: got 3 numbers, want one for each of the 4"));
  EXPECT_THAT(
      message(R"({"type": "su", "short_factor": [1, 1, 1, 1], "long_factor": [1, 1, 1, 0]})"),
      HasSubstr("short_factor and long_factor: got 0, want more than 0"));
  // Inside alone it does not count, as for transformers.
  const std::string inside = R"("type": "su", "original_max_position_embeddings": 64)";
  const ParsedConfig parsed = parse_config(phi3(inside), "c", false);
  EXPECT_EQ(parsed.config.context(), 4096);
  ASSERT_EQ(parsed.warnings.size(), 1u);
  EXPECT_THAT(parsed.warnings[0], HasSubstr("64 does not count here, and 4096 does"));
}

std::string qwen3_next(const std::string& more) {
  return config_text("Qwen3NextForCausalLM", "qwen3_next",
                     R"("head_dim": 16, "linear_num_key_heads": 2, "linear_num_value_heads": 6,
                        "linear_key_head_dim": 4, "linear_value_head_dim": 5, "num_experts": 4,
                        "num_experts_per_tok": 2)" +
                         more);
}

// The rows of a matrix that those of a parameter are in turn.
std::vector<int64_t> rows_in_files(const ParamRows& rows, std::string_view suffix) {
  std::vector<int64_t> places;
  for (const ParamRow& row : rows) {
    if (row.suffix != suffix) continue;
    Parameter parameter;
    parameter.runs = row.others.front().runs;
    for_each_stored_run(parameter, 0, row.shape[0], [&](int64_t, int64_t at, int64_t count) {
      for (int64_t i = 0; i < count; ++i) places.push_back(at + i);
    });
  }
  return places;
}

TEST(Readers, Qwen3NextsProjectionsTakeTurnsByKeyHead) {
  const LayerTable table(parse(qwen3_next("")));
  const ParamRows& rows = table.stack_of(0).rows[0].inner;
  // Of each of 2 key heads 4 rows of q, 4 of k, 3 x 5 of v, and as many of z; then 3 of b and of a.
  std::vector<int64_t> qkv, z, b, a;
  const auto take = [](std::vector<int64_t>& to, int64_t first, int64_t count) {
    for (int64_t i = 0; i < count; ++i) to.push_back(first + i);
  };
  for (const int64_t first : {0, 38}) take(qkv, first, 4);
  for (const int64_t first : {4, 42}) take(qkv, first, 4);
  for (const int64_t first : {8, 46}) take(qkv, first, 15);
  for (const int64_t first : {23, 61}) take(z, first, 15);
  for (const int64_t first : {0, 6}) take(b, first, 3);
  for (const int64_t first : {3, 9}) take(a, first, 3);
  EXPECT_EQ(rows_in_files(rows, "linear_attn.in_proj_qkv.weight"), qkv);
  EXPECT_EQ(rows_in_files(rows, "linear_attn.in_proj_z.weight"), z);
  EXPECT_EQ(rows_in_files(rows, "linear_attn.in_proj_b.weight"), b);
  EXPECT_EQ(rows_in_files(rows, "linear_attn.in_proj_a.weight"), a);
}

TEST(Readers, Qwen3NextHasDenseLayersWhereTheFileSaysSo) {
  const ModelConfig config = parse(qwen3_next(
      R"(, "decoder_sparse_step": 2, "mlp_only_layers": [3], "full_attention_interval": 2,
         "norm_topk_prob": false)"));
  for (int64_t layer = 0; layer < 5; ++layer) {
    const auto* moe = config.find_block_config<MoeConfig>(layer, kMoe);
    EXPECT_EQ(moe != nullptr, layer == 1) << layer;
    EXPECT_FALSE(moe != nullptr && moe->norm_topk);
    EXPECT_EQ(config.find_block_config<GqaConfig>(layer, kGqa) != nullptr, layer % 2 == 1);
  }
  EXPECT_EQ(parse(qwen3_next("")).find_block_config<MoeConfig>(4, kMoe)->top_k, 2);
}

TEST(Readers, ArchitectureAndModelTypeMustAgree) {
  EXPECT_THAT(message_of(config_text("LlamaForCausalLM", "granite", "")),
              HasSubstr("architectures says LlamaForCausalLM, model_type says 'granite', want "
                        "llama: transformers goes by model_type"));
  EXPECT_EQ(message_of(config_text("LlamaForCausalLM", "llama", "")), "");
}

TEST(Readers, RelativesAreRefusedByName) {
  const std::pair<std::string, std::string> relatives[] = {
      {"GraniteMoeHybridForCausalLM", "granitemoehybrid"},
      {"GraniteMoeSharedForCausalLM", "granitemoeshared"},
      {"GraniteSWAForCausalLM", "granite_swa"},
      {"Lfm2MoeForCausalLM", "lfm2_moe"},
      {"Lfm3ForCausalLM", "lfm3"},
      {"GlmForCausalLM", "glm"}};
  for (const auto& [architecture, type] : relatives) {
    EXPECT_THAT(message_of(config_text(architecture, type, "")), HasSubstr("not supported"));
    // Whichever of the two the file has.
    EXPECT_THAT(message_of(config_text("LlamaForCausalLM", type, "")), HasSubstr("not supported"));
  }
}

}  // namespace
}  // namespace strata::model
