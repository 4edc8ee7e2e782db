// SPDX-License-Identifier: Apache-2.0
// What the readers of Gemma 2 and Gemma 4 make of keys that only they have; goldens hold the
// numbers. Defaults and rules are those of transformers' configuration classes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "model/blocks/experts/moe.h"
#include "model/blocks/gated_mlp.h"
#include "model/blocks/per_layer_input.h"
#include "model/cache_layout.h"
#include "model/pass/shared_values.h"
#include "model/weights/tensor_names.h"
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

// Of each layer the one whose keys and values it reads, its own or another's, and the width of its
// MLP: "2 48".
std::vector<std::string> gemma4_kv_layers(const ModelConfig& config) {
  std::vector<std::string> all;
  for (int64_t layer = 0; layer < config.num_layers(); ++layer) {
    const GqaConfig& gqa = attention(config, layer);
    const int64_t width = config.find_block_config<GatedMlpConfig>(layer, kGatedMlp)->width;
    all.push_back(std::to_string(gqa.kv_layer.value_or(layer)) + " " + std::to_string(width) +
                  (gqa.gives_kv ? " gives" : ""));
  }
  return all;
}

TEST(Readers, Gemma4sLastLayersReadTheLastKeysBeforeThemOfTheirKind) {
  constexpr const char* kTypes =
      R"("layer_types": ["sliding_attention", "full_attention", "sliding_attention",
      "sliding_attention", "full_attention"])";
  const ModelConfig config = parse_gemma4(std::string(kTypes) + R"(, "num_kv_shared_layers": 2)");
  EXPECT_EQ(gemma4_kv_layers(config),
            (std::vector<std::string>{"0 48", "1 48 gives", "2 48 gives", "2 48", "1 48"}));
  // A cache has the entries of those that have keys and values alone.
  EXPECT_EQ(CacheLayout(config, DType::kF32, 16).position_bytes(),
            sizeof(float) * (2 * 2 * 2 * 256 + 2 * 2 * 512));
  // What crosses a border of stages: the state, and keys and values of layers 1 and 2.
  EXPECT_EQ(border_width(config), 32 + 2 * 2 * 512 + 2 * 2 * 256);
  const ModelConfig wide = parse_gemma4(std::string(kTypes) + R"(, "num_kv_shared_layers": 1,
      "use_double_wide_mlp": true)");
  EXPECT_EQ(gemma4_kv_layers(wide),
            (std::vector<std::string>{"0 48", "1 48 gives", "2 48", "3 48", "1 96"}));
  // What files have in layers that read others' takes no part, under any name of the model's.
  EXPECT_TRUE(is_of_another_modality(config, "model.layers.3.self_attn.k_proj.weight"));
  EXPECT_TRUE(is_of_another_modality(config, "model.layers.4.self_attn.v_norm.weight"));
  EXPECT_FALSE(is_of_another_modality(config, "model.layers.2.self_attn.k_proj.weight"));
  EXPECT_FALSE(is_of_another_modality(config, "model.layers.3.self_attn.q_proj.weight"));
  const auto message = [](const std::string& extra) {
    return message_of(config_text("Gemma4ForCausalLM", "gemma4_text",
                                  R"("hidden_size_per_layer_input": 0, )" + extra));
  };
  EXPECT_THAT(message(R"("num_kv_shared_layers": 5)"), HasSubstr("got 5, want 0 to 4"));
  EXPECT_THAT(message(R"("num_kv_shared_layers": -1)"), HasSubstr("got -1, want 0 to 4"));
  EXPECT_THAT(message(std::string(kTypes) + R"(, "num_kv_shared_layers": 4)"),
              HasSubstr("layer 1 is to read keys and values of a full_attention layer, and none is "
                        "before layer 1"));
}

TEST(Readers, Gemma4sLayersHaveInputsOfTheirOwn) {
  // 256 columns where the file does not say.
  const ModelConfig usual = parse(config_text("Gemma4ForCausalLM", "gemma4_text", ""));
  ASSERT_TRUE(usual.per_layer_inputs.has_value());
  EXPECT_EQ(usual.per_layer_inputs->width, 256);
  EXPECT_EQ(usual.per_layer_inputs->vocab_size, 262144);
  EXPECT_EQ(usual.layers[0].size(), 3u);
  EXPECT_EQ(usual.find_block_config<PerLayerInputConfig>(4, kPerLayerInput)->width, 256);
  EXPECT_EQ(border_width(usual), 32 + 5 * 256);
  EXPECT_EQ(border_gradient_width(usual, /*trains_before_layers=*/false), 32);
  EXPECT_EQ(border_width(parse_gemma4("")), 32);
  EXPECT_THAT(message_of(config_text("Gemma4ForCausalLM", "gemma4_text",
                                     R"("vocab_size_per_layer_input": 12)")),
              HasSubstr("vocab_size_per_layer_input: got 12, want at least vocab_size"));
}

TEST(Readers, WhatGemma4CannotHaveIsRefusedByName) {
  const auto message = [](const std::string& extra) {
    return message_of(config_text("Gemma4ForCausalLM", "gemma4_text", extra));
  };
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
