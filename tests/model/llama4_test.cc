// SPDX-License-Identifier: Apache-2.0
// What a Llama 4 config.json means, as configuration_llama4.py of transformers reads it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"
#include "model/blocks/experts/moe.h"
#include "model/blocks/gated_mlp.h"
#include "model/blocks/gqa.h"
#include "model/config.h"

namespace strata::model {
namespace {

using testing::HasSubstr;

std::string llama4(const std::string& extra) {
  return R"({"architectures": ["Llama4ForCausalLM"], "model_type": "llama4_text")" +
         (extra.empty() ? "" : ", " + extra) + "}";
}

ModelConfig parse(const std::string& text) {
  return parse_config(text, "dir/config.json", /*strict=*/true).config;
}

std::string message_of(const std::string& text) {
  try {
    parse(text);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

const GqaConfig& attention(const ModelConfig& config, int64_t layer) {
  return *config.find_block_config<GqaConfig>(layer, kGqa);
}

bool has_experts(const ModelConfig& config, int64_t layer) {
  return config.find_block_config<MoeConfig>(layer, kMoe) != nullptr;
}

// The scale of queries of a layer that turns nothing.
const PositionScale& scale_of(const ModelConfig& config, int64_t layer) {
  return config.ropes[static_cast<size_t>(attention(config, layer).query_rope.value())]
      .position_scale;
}

TEST(Llama4, DefaultsAreHuggingFaces) {
  const ModelConfig config = parse(llama4(""));
  EXPECT_EQ(config.vocab_size, 202048);
  EXPECT_EQ(config.hidden_size, 5120);
  EXPECT_EQ(config.num_layers(), 48);
  EXPECT_EQ(config.rms_norm_eps, 1e-5);
  EXPECT_FALSE(config.tie_word_embeddings);
  EXPECT_TRUE(config.packs_experts);
  const GqaConfig& first = attention(config, 0);
  EXPECT_EQ(first.num_heads, 40);
  EXPECT_EQ(first.num_kv_heads, 8);
  EXPECT_EQ(first.head_dim, 128);
  EXPECT_TRUE(first.in_chunks && first.plain_qk_norm && first.rope_interleave);
  EXPECT_EQ(first.window, 8192);
  EXPECT_EQ(config.ropes[static_cast<size_t>(first.rope)].config.theta, 500000.0);
  const GqaConfig& fourth = attention(config, 3);
  EXPECT_EQ(fourth.rope, kNoRope);
  EXPECT_FALSE(fourth.in_chunks || fourth.plain_qk_norm);
  EXPECT_EQ(fourth.window, 0);
  const MoeConfig& moe = *config.find_block_config<MoeConfig>(0, kMoe);
  EXPECT_EQ(moe.num_experts, 16);
  EXPECT_EQ(moe.top_k, 1);
  EXPECT_EQ(moe.expert_width, 8192);
  EXPECT_EQ(moe.shared_width, 8192);
  EXPECT_TRUE(moe.weighs_inputs);
  EXPECT_EQ(moe.router, RouterKind::kLogit);
}

// Positions count from 1: the first of another scale is the last of the first 8,192.
TEST(Llama4, QueriesAreScaledOnePositionEarly) {
  const ModelConfig config = parse(llama4(""));
  EXPECT_EQ(scale_of(config, 3).at(8190), 1.0);
  EXPECT_DOUBLE_EQ(scale_of(config, 3).at(8191), 1.0 + 0.1 * std::log(2.0));
  EXPECT_FALSE(attention(config, 0).query_rope.has_value());
  // Nothing else turns: the table's frequencies are 0.
  const RopeSpec& spec = config.ropes[static_cast<size_t>(attention(config, 3).query_rope.value())];
  for (const double frequency : rope_frequencies(spec.config, spec.dim)) EXPECT_EQ(frequency, 0.0);
  for (const char* off : {R"("attn_temperature_tuning": false)", R"("attn_temperature_tuning": 0)",
                          R"("attn_scale": 0.0)"}) {
    EXPECT_FALSE(attention(parse(llama4(off)), 3).query_rope.has_value()) << off;
  }
  const ModelConfig early =
      parse(llama4(R"("attn_temperature_tuning": 4, "floor_scale": 16, "attn_scale": 0.5)"));
  EXPECT_DOUBLE_EQ(scale_of(early, 3).at(15), 1.0 + 0.5 * std::log(2.0));
}

TEST(Llama4, LayersThatTurnAreThoseOfTheList) {
  // An empty list, as the published files have it, is none.
  for (const char* none : {R"("no_rope_layers": [])", R"("no_rope_layers": null)"}) {
    const ModelConfig config = parse(llama4(none));
    EXPECT_EQ(attention(config, 3).rope, kNoRope) << none;
    EXPECT_NE(attention(config, 4).rope, kNoRope) << none;
  }
  const ModelConfig listed =
      parse(llama4(R"("num_hidden_layers": 3, "no_rope_layers": [0, 1, 1])"));
  EXPECT_EQ(attention(listed, 0).rope, kNoRope);
  EXPECT_NE(attention(listed, 1).rope, kNoRope);
  EXPECT_THAT(message_of(llama4(R"("no_rope_layers": [1, 0])")),
              HasSubstr("no_rope_layers: got 2 layers, num_hidden_layers is 48"));
}

TEST(Llama4, ChunksAreThoseOfTheTypes) {
  const ModelConfig none = parse(llama4(R"("attention_chunk_size": null)"));
  EXPECT_FALSE(attention(none, 0).in_chunks);
  EXPECT_EQ(attention(none, 0).window, 0);
  const ModelConfig typed = parse(
      llama4(R"("num_hidden_layers": 2, "layer_types": ["full_attention", "chunked_attention"])"));
  EXPECT_FALSE(attention(typed, 0).in_chunks);
  EXPECT_TRUE(attention(typed, 1).in_chunks);
  EXPECT_THAT(message_of(llama4(R"("num_hidden_layers": 1, "layer_types": ["chunked_attention"],
                           "attention_chunk_size": null)")),
              HasSubstr("chunked_attention without attention_chunk_size"));
  EXPECT_THAT(
      message_of(llama4(R"("num_hidden_layers": 1, "layer_types": ["sliding_attention"])")),
      HasSubstr("got 'sliding_attention', supported are full_attention and chunked_attention"));
}

TEST(Llama4, LayersWithExpertsAreThoseOfTheListOrTheStep) {
  const ModelConfig step = parse(llama4(R"("interleave_moe_layer_step": 2)"));
  EXPECT_FALSE(has_experts(step, 0));
  EXPECT_TRUE(has_experts(step, 1));
  EXPECT_EQ(step.find_block_config<GatedMlpConfig>(0, kGatedMlp)->width, 16384);
  const ModelConfig listed = parse(llama4(R"("moe_layers": [2], "interleave_moe_layer_step": 2)"));
  EXPECT_FALSE(has_experts(listed, 1));
  EXPECT_TRUE(has_experts(listed, 2));
  EXPECT_FALSE(has_experts(parse(llama4(R"("moe_layers": [])")), 0));
  EXPECT_THAT(message_of(llama4(R"("moe_layers": [48])")),
              HasSubstr("moe_layers: got 48, num_hidden_layers is 48"));
}

TEST(Llama4, OtherSettingsAreRefusedByName) {
  EXPECT_THAT(message_of(llama4(R"("router_jitter_noise": 0.1)")),
              HasSubstr("router_jitter_noise"));
  EXPECT_THAT(message_of(llama4(R"("for_llm_compressor": true)")), HasSubstr("for_llm_compressor"));
  EXPECT_THAT(message_of(llama4(R"("attn_scale": -0.1)")), HasSubstr("attn_scale: got -0.1"));
}

TEST(Llama4, TheTextPartOfAMultimodalModelIsIt) {
  const ModelConfig config = parse(R"({"architectures": ["Llama4ForConditionalGeneration"],
      "model_type": "llama4", "vision_config": {}, "boi_token_index": 1, "eoi_token_index": 2,
      "image_token_index": 3, "text_config": {"model_type": "llama4_text"}})");
  EXPECT_EQ(config.family, "llama4");
  EXPECT_EQ(config.module_prefix, "language_model.model.");
  EXPECT_EQ(config.name_forms.front().head, "language_model.lm_head.");
}

}  // namespace
}  // namespace strata::model
