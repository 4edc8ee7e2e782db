// SPDX-License-Identifier: Apache-2.0
// What a gpt-oss config.json means, as configuration_gpt_oss.py of transformers reads it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "model/blocks/experts/moe.h"
#include "model/blocks/gqa.h"
#include "model/config.h"

namespace strata::model {
namespace {

using testing::HasSubstr;

std::string gpt_oss(const std::string& extra) {
  return R"({"architectures": ["GptOssForCausalLM"])" + (extra.empty() ? "" : ", " + extra) + "}";
}

ModelConfig parse(const std::string& text, bool strict = true) {
  return parse_config(text, "dir/config.json", strict).config;
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

TEST(GptOss, DefaultsAreHuggingFaces) {
  const ModelConfig config = parse(gpt_oss(""));
  EXPECT_EQ(config.vocab_size, 201088);
  EXPECT_EQ(config.hidden_size, 2880);
  EXPECT_EQ(config.num_layers(), 36);
  EXPECT_EQ(config.rms_norm_eps, 1e-5);
  EXPECT_FALSE(config.tie_word_embeddings);
  const GqaConfig& first = attention(config, 0);
  EXPECT_EQ(first.num_heads, 64);
  EXPECT_EQ(first.num_kv_heads, 8);
  EXPECT_EQ(first.head_dim, 64);
  EXPECT_EQ(first.window, 128);
  EXPECT_EQ(attention(config, 1).window, 0);
  EXPECT_TRUE(first.sinks && first.qkv_bias && first.o_bias);
  const MoeConfig& moe = *config.find_block_config<MoeConfig>(0, kMoe);
  EXPECT_EQ(moe.num_experts, 128);
  EXPECT_EQ(moe.top_k, 4);
  EXPECT_EQ(moe.expert_width, 2880);
  EXPECT_TRUE(moe.norm_topk && moe.router_bias && moe.expert_bias);
  EXPECT_EQ(moe.clamp.limit, 7.0f);
  EXPECT_EQ(moe.clamp.alpha, 1.702f);
  EXPECT_EQ(moe.clamp.up_offset, 1.0f);
  const RopeConfig& rope = config.ropes[0].config;
  EXPECT_EQ(rope.type, RopeType::kYarn);
  EXPECT_EQ(rope.theta, 150000.0);
  EXPECT_EQ(rope.factor, 32.0);
  EXPECT_FALSE(rope.truncate);
}

// The published files write the scaling out; one without the key is rounded, as anybody's.
TEST(GptOss, TruncateIsTheFiles) {
  const std::string yarn = R"("rope_theta": 150000, "rope_scaling": {"rope_type": "yarn",
      "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0,
      "original_max_position_embeddings": 4096)";
  EXPECT_FALSE(parse(gpt_oss(yarn + R"(, "truncate": false})")).ropes[0].config.truncate);
  EXPECT_TRUE(parse(gpt_oss(yarn + "}")).ropes[0].config.truncate);
  EXPECT_EQ(rope_frequencies(parse(gpt_oss("")).ropes[0].config, 64),
            rope_frequencies(parse(gpt_oss(yarn + R"(, "truncate": false})")).ropes[0].config, 64));
}

TEST(GptOss, KeysFollowTheFile) {
  const ModelConfig config = parse(gpt_oss(
      R"("num_hidden_layers": 2, "layer_types": ["full_attention", "sliding_attention"],
         "sliding_window": 5, "attention_bias": false, "swiglu_limit": 3.0, "num_experts": 6,
         "experts_per_token": 2, "initial_context_length": 4096, "head_dim": 32)"));
  EXPECT_EQ(attention(config, 0).window, 0);
  EXPECT_EQ(attention(config, 1).window, 5);
  EXPECT_FALSE(attention(config, 0).qkv_bias || attention(config, 0).o_bias);
  const MoeConfig& moe = *config.find_block_config<MoeConfig>(1, kMoe);
  EXPECT_EQ(moe.num_experts, 6);
  EXPECT_EQ(moe.top_k, 2);
  EXPECT_EQ(moe.clamp.limit, 3.0f);
}

TEST(GptOss, WhatCannotBeIsRefused) {
  EXPECT_THAT(message_of(gpt_oss(R"("swiglu_limit": 0)")), HasSubstr("swiglu_limit: got 0"));
  EXPECT_THAT(message_of(gpt_oss(R"("num_local_experts": 8, "num_experts": 16)")),
              HasSubstr("num_local_experts 8 and num_experts 16 disagree"));
  EXPECT_THAT(message_of(gpt_oss(R"("layer_types": ["sliding_attention"])")),
              HasSubstr("layer_types"));
  EXPECT_THAT(message_of(gpt_oss(R"("hidden_act": "gelu")")), HasSubstr("hidden_act"));
}

// The published repositories hold a second set of files for OpenAI's own program.
TEST(GptOss, FilesOfTheOtherProgramGetAHint) {
  EXPECT_THAT(message_of(R"({"num_hidden_layers": 24, "num_experts": 32, "experts_per_token": 4,
      "vocab_size": 201088, "hidden_size": 2880, "intermediate_size": 2880, "swiglu_limit": 7.0,
      "head_dim": 64, "num_attention_heads": 64, "num_key_value_heads": 8, "sliding_window": 128,
      "initial_context_length": 4096, "rope_theta": 150000, "rope_scaling_factor": 32.0,
      "rope_ntk_alpha": 1, "rope_ntk_beta": 32})"),
              HasSubstr("in the folder above"));
}

}  // namespace
}  // namespace strata::model
