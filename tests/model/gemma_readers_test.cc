// SPDX-License-Identifier: Apache-2.0
// What the readers of Gemma 2 and Gemma 4 make of keys that only they have; goldens hold the
// numbers. Defaults and rules are those of transformers' configuration classes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "model/blocks/experts/moe.h"
#include "tests/model/reader_case.h"

namespace strata::model {
namespace {

using testing::HasSubstr;

TEST(Readers, Gemma2CapsScoresAndLogits) {
  const ModelConfig config = parse(config_text(
      "Gemma2ForCausalLM", "gemma2",
      R"("head_dim": 8, "query_pre_attn_scalar": 144, "sliding_window": 7, "hidden_act": "gelu_pytorch_tanh",
         "hidden_activation": "gelu_pytorch_tanh", "cache_implementation": "hybrid")"));
  EXPECT_EQ(config.logit_map.cap, 30.0f);
  EXPECT_EQ(config.logit_map.scale, 1.0f);
  EXPECT_TRUE(config.tie_word_embeddings);
  EXPECT_EQ(config.embedding_scale, std::sqrt(32.0));
  std::vector<int64_t> windows;
  for (int64_t layer = 0; layer < config.num_layers(); ++layer) {
    const GqaConfig& gqa = attention(config, layer);
    EXPECT_EQ(gqa.score_cap, 50.0f);
    EXPECT_EQ(gqa.scale, 1.0f / 12);  // not of head_dim
    windows.push_back(gqa.window);
  }
  EXPECT_EQ(windows, (std::vector<int64_t>{7, 0, 7, 0, 7}));
  // null says that there is no cap; a cap of 0 says nothing.
  const ModelConfig none =
      parse(config_text("Gemma2ForCausalLM", "gemma2",
                        R"("attn_logit_softcapping": null, "final_logit_softcapping": null)"));
  EXPECT_EQ(attention(none, 0).score_cap, 0.0f);
  EXPECT_EQ(attention(none, 0).window, 4096);
  EXPECT_EQ(attention(none, 0).head_dim, 256);
  EXPECT_TRUE(none.logit_map.is_identity());
  for (const char* key : {"attn_logit_softcapping", "final_logit_softcapping"}) {
    EXPECT_THAT(
        message_of(config_text("Gemma2ForCausalLM", "gemma2", std::string("\"") + key + "\": 0")),
        HasSubstr(key));
  }
}

// The kinds of layers that Gemma 4 has, and a layer's head sizes: "s 256 4" of a sliding layer.
std::vector<std::string> gemma4_layers(const ModelConfig& config) {
  std::vector<std::string> kinds;
  for (int64_t layer = 0; layer < config.num_layers(); ++layer) {
    const GqaConfig& gqa = attention(config, layer);
    EXPECT_EQ(gqa.scale, 1.0f);
    EXPECT_TRUE(gqa.qk_norm && gqa.v_norm);
    kinds.push_back(std::string(gqa.window > 0 ? "s " : "f ") + std::to_string(gqa.head_dim) + " " +
                    std::to_string(gqa.num_kv_heads) + (gqa.keys_are_values ? " k" : ""));
  }
  return kinds;
}

ModelConfig parse_gemma4(const std::string& extra) {
  return parse(
      config_text("Gemma4ForCausalLM", "gemma4_text",
                  R"("hidden_size_per_layer_input": 0)" + (extra.empty() ? "" : ", " + extra)));
}

TEST(Readers, Gemma4sFullLayersHaveHeadsOfTheirOwn) {
  // As published: the last layer is full whatever the types say, and without attention_k_eq_v the
  // number of key heads does not count.
  EXPECT_EQ(gemma4_layers(parse_gemma4(R"("num_global_key_value_heads": 1)")),
            (std::vector<std::string>{"s 256 2", "s 256 2", "s 256 2", "s 256 2", "f 512 2"}));
  EXPECT_EQ(gemma4_layers(parse_gemma4(R"("num_global_key_value_heads": 1, "attention_k_eq_v": true,
      "head_dim": 8, "global_head_dim": 12, "layer_types": ["full_attention", "sliding_attention",
      "sliding_attention", "sliding_attention", "sliding_attention"])")),
            (std::vector<std::string>{"f 12 1 k", "s 8 2", "s 8 2", "s 8 2", "f 12 1 k"}));
  // As transformers saves it, by layer.
  EXPECT_EQ(gemma4_layers(parse_gemma4(R"("attention_k_eq_v": true, "head_dim": 8,
      "per_layer_config": {"04": {"head_dim": 12, "num_key_value_heads": 4}})")),
            (std::vector<std::string>{"s 8 2", "s 8 2", "s 8 2", "s 8 2", "f 12 4 k"}));
  const ModelConfig config = parse_gemma4(R"("final_logit_softcapping": 30)");
  EXPECT_EQ(config.logit_map.cap, 30.0f);
  EXPECT_EQ(config.embedding_scale, std::sqrt(32.0));
  EXPECT_EQ(config.norm_offset, 0.0f);
  EXPECT_EQ(attention(config, 0).window, 512);
  const ModelConfig unified =
      parse(config_text("Gemma4UnifiedForCausalLM", "gemma4_unified_text", ""));
  EXPECT_EQ(attention(unified, 0).window, 1024);
}

TEST(Readers, Gemma4TurnsTheFirstPairsOfItsFullLayersHeads) {
  const ModelConfig config = parse_gemma4(R"("head_dim": 8, "global_head_dim": 16)");
  const auto frequencies = [&](int64_t layer) {
    const RopeSpec& rope = config.ropes[static_cast<size_t>(attention(config, layer).rope)];
    return rope_frequencies(rope.config, rope.dim);
  };
  EXPECT_EQ(frequencies(0)[3], std::pow(1e4, -6.0 / 8));
  // A quarter of the eight pairs, by the exponents of all of them.
  const std::vector<double> full = frequencies(4);
  ASSERT_EQ(full.size(), 8u);
  EXPECT_EQ(full[1], std::pow(1e6, -2.0 / 16));
  EXPECT_EQ(full[2], 0.0);
  EXPECT_THAT(message_of(config_text("Gemma4ForCausalLM", "gemma4_text",
                                     R"("hidden_size_per_layer_input": 0, "rope_parameters":
      {"sliding_attention": {"rope_type": "default", "partial_rotary_factor": 0.5}})")),
              HasSubstr("counts with rope_type proportional alone"));
}

TEST(Readers, Gemma4sExpertsStandNextToItsMlp) {
  const ModelConfig config = parse_gemma4(
      R"("enable_moe_block": true, "num_experts": 6, "top_k_experts": 2, "moe_intermediate_size": 8)");
  const auto* moe = config.find_block_config<MoeConfig>(0, kMoe);
  ASSERT_NE(moe, nullptr);
  EXPECT_TRUE(moe->norms_paths && moe->norm_topk);
  EXPECT_EQ(moe->num_experts, 6);
  EXPECT_EQ(moe->top_k, 2);
  EXPECT_EQ(moe->expert_width, 8);
  EXPECT_EQ(moe->shared_width, 48);
  const auto stored = [&](const std::string& name) { return config.names_in_files(name).front(); };
  EXPECT_EQ(stored("model.layers.0.mlp.shared_experts.up_proj.weight"),
            "model.layers.0.mlp.up_proj.weight");
  EXPECT_EQ(stored("model.layers.0.mlp.experts.gate_up_proj"),
            "model.layers.0.experts.gate_up_proj");
  EXPECT_EQ(stored("model.layers.0.mlp.gate.weight"), "model.layers.0.router.proj.weight");
}

TEST(Readers, WhatGemma4sOtherSizesHaveIsRefusedByName) {
  const auto message = [](const std::string& extra) {
    return message_of(config_text("Gemma4ForCausalLM", "gemma4_text", extra));
  };
  EXPECT_THAT(message(""), HasSubstr("embeddings of each layer (E2B, E4B) are not supported"));
  EXPECT_THAT(message(R"("num_kv_shared_layers": 2)"), HasSubstr("other layers' keys and values"));
  EXPECT_THAT(message(R"("hidden_size_per_layer_input": 0, "enable_moe_block": true)"),
              HasSubstr("num_experts"));
  EXPECT_THAT(message(R"("use_bidirectional_attention": "all")"),
              HasSubstr("use_bidirectional_attention"));
  EXPECT_EQ(message(R"("hidden_size_per_layer_input": null,
      "use_bidirectional_attention": "vision")"),
            "");
  EXPECT_THAT(
      message(R"("hidden_size_per_layer_input": 0, "per_layer_config": {"5": {"head_dim": 8}})"),
      HasSubstr("per_layer_config: got '5', want a layer from 0 to 4"));
  EXPECT_THAT(
      message(R"("hidden_size_per_layer_input": 0, "per_layer_config": {"1": {"window": 8}})"),
      HasSubstr("key 'window' is not supported"));
}

}  // namespace
}  // namespace strata::model
