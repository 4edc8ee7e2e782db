// SPDX-License-Identifier: Apache-2.0
#include "model/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numbers>

#include "base/error.h"
#include "model/blocks/experts/moe.h"
#include "model/blocks/gqa.h"

namespace strata::model {
namespace {

using testing::HasSubstr;

// A complete Llama config with `extra` spliced in; keys of `extra` come last.
std::string llama(const std::string& extra) {
  return R"({"architectures": ["LlamaForCausalLM"], "vocab_size": 100, "hidden_size": 32, "intermediate_size": 48,
             "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2)" +
         (extra.empty() ? "" : ", " + extra) + "}";
}

std::string message_of(const std::string& text, bool strict = false) {
  try {
    parse_config(text, "dir/config.json", strict);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

ModelConfig parse(const std::string& text) {
  return parse_config(text, "dir/config.json", false).config;
}

const GqaConfig& attention(const ModelConfig& config) {
  return *config.find_block_config<GqaConfig>(0, kGqa);
}

const MoeConfig* experts(const ModelConfig& config, int64_t layer) {
  return config.find_block_config<MoeConfig>(layer, kMoe);
}

TEST(Config, BothFormsOfRopeGiveTheSame) {
  const ModelConfig old_form = parse(llama(
      R"("rope_theta": 500000.0, "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
         "high_freq_factor": 4.0, "original_max_position_embeddings": 64}, "torch_dtype": "bfloat16")"));
  const ModelConfig new_form = parse(llama(
      R"("rope_parameters": {"rope_theta": 500000.0, "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
         "high_freq_factor": 4.0, "original_max_position_embeddings": 64}, "dtype": "bfloat16")"));
  EXPECT_EQ(old_form.ropes[0].config.theta, new_form.ropes[0].config.theta);
  EXPECT_EQ(rope_frequencies(old_form.ropes[0].config, 16),
            rope_frequencies(new_form.ropes[0].config, 16));
  EXPECT_EQ(old_form.dtype, DType::kBF16);
  EXPECT_EQ(new_form.dtype, DType::kBF16);
}

TEST(Config, FormsThatDisagreeAreRefused) {
  EXPECT_THAT(message_of(llama(R"("rope_theta": 1.0, "rope_parameters": {"rope_theta": 2.0})")),
              HasSubstr("disagree"));
  EXPECT_THAT(message_of(llama(R"("torch_dtype": "float32", "dtype": "bfloat16")")),
              HasSubstr("disagree"));
  EXPECT_THAT(message_of(llama(
                  R"("rope_scaling": {"type": "linear", "rope_type": "llama3", "factor": 2.0})")),
              HasSubstr("disagree"));
}

TEST(Config, UnknownKeyIsAWarningAndAnErrorWhenStrict) {
  const ParsedConfig parsed = parse_config(llama(R"("new_trick": 3)"), "c.json", false);
  ASSERT_EQ(parsed.warnings.size(), 1u);
  EXPECT_THAT(parsed.warnings[0], HasSubstr("new_trick"));
  EXPECT_THAT(message_of(llama(R"("new_trick": 3)"), true), HasSubstr("new_trick"));
  EXPECT_TRUE(parse_config(llama(R"("use_cache": true, "pretraining_tp": 1)"), "c.json", true)
                  .warnings.empty());
}

TEST(Config, WhatChangesTheModelIsRefusedByName) {
  EXPECT_THAT(message_of(llama(R"("hidden_act": "gelu")")), HasSubstr("hidden_act"));
  EXPECT_THAT(message_of(llama(R"("pretraining_tp": 2)")), HasSubstr("pretraining_tp"));
  EXPECT_THAT(message_of(llama(R"("rope_scaling": {"rope_type": "longrope", "factor": 2.0})")),
              HasSubstr("longrope"));
  EXPECT_THAT(
      message_of(
          llama(R"("rope_scaling": {"rope_type": "linear", "factor": 2.0, "mscale_all_dim": 1})")),
      HasSubstr("mscale_all_dim"));
  EXPECT_THAT(message_of(llama(R"("partial_rotary_factor": 0.5)")),
              HasSubstr("partial_rotary_factor"));
  EXPECT_THAT(message_of(R"({"architectures": ["MambaForCausalLM"]})"),
              HasSubstr("Qwen3ForCausalLM"));
  const std::string qwen =
      R"({"architectures": ["Qwen3ForCausalLM"], "vocab_size": 100, "hidden_size": 32,
      "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, )";
  EXPECT_THAT(message_of(qwen + R"("layer_types": ["sliding_attention"]})"),
              HasSubstr("layer_types"));
  // A layer may slide only where the window is switched on.
  EXPECT_THAT(message_of(qwen + R"("layer_types": ["sliding_attention", "full_attention"]})"),
              HasSubstr("without a window"));
  EXPECT_THAT(message_of(llama(R"("hidden_act": "mish")")), HasSubstr("\"silu\" or \"swish\""));
}

// What each layer sees: use_sliding_window, sliding_window and max_window_layers, or layer_types.
TEST(Config, WindowsOfQwen3AreTransformers) {
  const auto windows = [](const std::string& architecture, const std::string& extra) {
    const ModelConfig config = parse(R"({"architectures": [")" + architecture +
                                     R"("], "vocab_size": 100, "hidden_size": 32,
      "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4,
      "num_key_value_heads": 2, )" + extra +
                                     "}");
    std::vector<int64_t> found;
    for (int64_t layer = 0; layer < 3; ++layer) {
      found.push_back(config.find_block_config<GqaConfig>(layer, kGqa)->window);
    }
    return found;
  };
  using Windows = std::vector<int64_t>;
  const std::string dense = "Qwen3ForCausalLM", moe = "Qwen3MoeForCausalLM";
  const std::string on =
      R"("use_sliding_window": true, "sliding_window": 7, "max_window_layers": 2)";
  const std::string off = R"("use_sliding_window": false, "sliding_window": 7)";
  EXPECT_EQ(windows(dense, on), (Windows{0, 0, 7}));
  EXPECT_EQ(windows(dense, off), (Windows{0, 0, 0}));
  EXPECT_EQ(windows(dense, R"("use_sliding_window": true, "sliding_window": null)"),
            (Windows{0, 0, 0}));
  EXPECT_EQ(windows(dense, R"("use_sliding_window": true, "max_window_layers": 0)"),
            (Windows{4096, 4096, 4096}));
  EXPECT_EQ(windows(dense, on + R"(, "layer_types": ["sliding_attention", "full_attention",
      "sliding_attention"])"),
            (Windows{7, 0, 7}));
  EXPECT_EQ(windows(moe, on), (Windows{7, 7, 7}));
  EXPECT_EQ(windows(moe, off), (Windows{0, 0, 0}));
  const std::string contradiction = R"({"architectures": ["Qwen3MoeForCausalLM"], "vocab_size": 100,
      "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 4,
      "num_key_value_heads": 2, "use_sliding_window": true, "layer_types": ["full_attention"]})";
  EXPECT_THAT(message_of(contradiction), HasSubstr("want sliding_attention in every layer"));
}

TEST(Config, ScalingsAreReadAsTransformersReadsThem) {
  const auto rope = [](const std::string& extra) { return parse(llama(extra)).ropes[0].config; };
  const std::string yarn = R"("rope_scaling": {"type": "yarn", "factor": 4.0,
      "original_max_position_embeddings": 32)";
  // Beside the scaling it goes before the one inside, but for scalings that know no such length.
  const std::string beside = R"(, "original_max_position_embeddings": 64)";
  EXPECT_EQ(rope(yarn + "}" + beside).original_max_position_embeddings, 64.0);
  EXPECT_EQ(rope(R"("rope_scaling": {"rope_type": "linear", "factor": 2.0})" + beside),
            rope(R"("rope_scaling": {"rope_type": "linear", "factor": 2.0})"));
  EXPECT_TRUE(
      parse_config(llama(yarn + R"(, "finetuned": true})" + beside), "c", false).warnings.empty());
  // Left out, it is max_position_embeddings.
  EXPECT_EQ(rope(R"("max_position_embeddings": 96, "rope_scaling": {"rope_type": "llama3",
      "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0})")
                .original_max_position_embeddings,
            96.0);
  // Zero is a factor too: nothing of queries and keys is left.
  EXPECT_EQ(static_cast<float>(rope_attention_factor(rope(yarn + R"(, "attention_factor": 0})"))),
            0.0f);
  EXPECT_GT(rope_attention_factor(rope(yarn + R"(, "attention_factor": null})")), 1.0);
  // A null factor is the ratio of the lengths, whichever original length counts.
  const std::string ratio = R"("max_position_embeddings": 256, "rope_scaling": {"type": "yarn",
      "original_max_position_embeddings": 32, "factor": null})";
  EXPECT_EQ(rope(ratio).factor, 8.0);
  EXPECT_EQ(rope(ratio + beside).factor, 4.0);
  // Below 1 transformers warns, and computes.
  EXPECT_EQ(rope(R"("rope_scaling": {"type": "linear", "factor": 0.5})").factor, 0.5);
  EXPECT_EQ(rope_attention_factor(rope(R"("rope_scaling": {"type": "yarn", "factor": 0.5})")), 1.0);
  EXPECT_THAT(message_of(llama(R"("rope_scaling": {"type": "linear", "factor": 0.0})")),
              HasSubstr("want more than 0"));
  EXPECT_THAT(message_of(llama(R"("rope_scaling": {"type": "linear", "factor": null})")),
              HasSubstr("'factor'"));
}

// transformers reads `truncate` of rope_parameters itself, which of settings by kind of layer is
// beside them.
TEST(Config, TruncateIsReadWhereTransformersReadsIt) {
  const auto truncates = [](const std::string& extra) {
    const ModelConfig config = parse(R"({"architectures": ["Gemma3ForCausalLM"], "vocab_size": 100,
      "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 6, "head_dim": 8,
      "num_attention_heads": 4, "num_key_value_heads": 2, )" +
                                     extra + "}");
    return config.ropes[0].config.truncate;
  };
  const std::string yarn = R"({"rope_type": "yarn", "factor": 4.0,
      "original_max_position_embeddings": 32)";
  const std::string no = R"(, "truncate": false)";
  EXPECT_TRUE(truncates(R"("rope_parameters": {"full_attention": )" + yarn + no + "}}"));
  EXPECT_FALSE(truncates(R"("rope_parameters": {"full_attention": )" + yarn + "}" + no + "}"));
  EXPECT_TRUE(truncates(R"("rope_scaling": )" + yarn + no + "}"));
}

TEST(Config, Qwen35MoeCountsItsExpertsByOneName) {
  const std::string base = R"({"architectures": ["Qwen3_5MoeForCausalLM"], "vocab_size": 100,
      "hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4, "head_dim": 8,
      "moe_intermediate_size": 8, "num_experts_per_tok": 2, "num_experts": 4)";
  const auto parsed = parse_config(base + R"(, "num_local_experts": 8})", "c", false);
  EXPECT_EQ(parsed.config.find_block_config<MoeConfig>(0, kMoe)->num_experts, 4);
  ASSERT_EQ(parsed.warnings.size(), 1u);
  EXPECT_THAT(parsed.warnings[0], HasSubstr("num_local_experts"));
}

TEST(Config, ANullNumberOfKeyHeadsIsThatOfHeads) {
  const std::string sizes = R"("], "vocab_size": 100, "hidden_size": 32, "intermediate_size": 48,
      "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": null})";
  for (const char* architecture : {"Qwen3ForCausalLM", "Qwen2ForCausalLM", "LlamaForCausalLM"}) {
    const ModelConfig config = parse(R"({"architectures": [")" + std::string(architecture) + sizes);
    EXPECT_EQ(attention(config).num_kv_heads, 4) << architecture;
  }
}

TEST(Config, GemmasRopesAreDefaultsWhereTheyAreLeftOut) {
  const auto ropes = [](const std::string& extra) {
    return parse(R"({"architectures": ["Gemma3ForCausalLM"], "hidden_size": 32,
      "num_attention_heads": 2, "num_key_value_heads": 1, "num_hidden_layers": 2, "vocab_size": 64,
      "intermediate_size": 48, "head_dim": 16, )" +
                 extra + "}")
        .ropes;
  };
  const std::string full = R"("full_attention": {"rope_type": "linear", "factor": 8.0})";
  EXPECT_EQ(ropes(R"("rope_parameters": {)" + full + "}")[1].config.theta, 1e4);
  const auto outer =
      ropes(R"("rope_theta": 3e4, "rope_local_base_freq": 777, "rope_parameters": {)" + full + "}");
  EXPECT_EQ(outer[0].config.theta, 3e4);
  EXPECT_EQ(outer[0].config.factor, 8.0);
  EXPECT_EQ(outer[1].config.theta, 777.0);
  const auto local = ropes(R"("rope_parameters": {"sliding_attention": {"rope_theta": 5}})");
  EXPECT_EQ(local[0].config.theta, 1e6);
  EXPECT_EQ(local[1].config.theta, 5.0);
  // transformers takes settings that are not of a kind of layer, and ignores them.
  EXPECT_THROW(ropes(R"("rope_parameters": {"rope_type": "linear", "factor": 8.0})"), Error);
}

TEST(Config, HostileValuesAreErrors) {
  for (
      const char* extra :
      {R"("head_dim": 7)", R"("head_dim": 0)", R"("num_hidden_layers": -1)",
       R"("num_key_value_heads": 3)", R"("num_key_value_heads": 0)", R"("rms_norm_eps": "small")",
       R"("tie_word_embeddings": 1)", R"("rope_scaling": {"rope_type": "llama3"})",
       R"("dtype": "int8")", R"("rope_theta": -1)", R"("hidden_size": 2000000000)",
       R"("rope_parameters": {"rope_type": "llama3", "factor": 2.0, "low_freq_factor": 0.0, "high_freq_factor": 4.0,
           "original_max_position_embeddings": 64})"}) {
    EXPECT_NE(message_of(llama(extra)), "") << extra;
  }
  for (const char* text : {"", "[]", "{", "null", R"({"architectures": 3})", "{}"})
    EXPECT_NE(message_of(text), "");
}

TEST(Config, DefaultsAreHuggingFaces) {
  const ModelConfig llama_config = parse(llama(""));
  EXPECT_EQ(attention(llama_config).head_dim, 8);
  EXPECT_FALSE(llama_config.tie_word_embeddings);
  EXPECT_EQ(llama_config.ropes[0].config.theta, 10000.0);
  const ModelConfig qwen =
      parse(R"({"architectures": ["Qwen3ForCausalLM"], "vocab_size": 100, "hidden_size": 32,
      "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 32})");
  EXPECT_EQ(attention(qwen).head_dim, 128);  // not hidden_size / heads
  EXPECT_EQ(attention(qwen).num_kv_heads, 32);
  EXPECT_TRUE(attention(qwen).qk_norm);
}

// Values worked out by hand from the formula of the Llama 3.1 release.
// norm_topk_prob is off unless the file says otherwise; which layers are sparse, and the two names
// of the number of experts.
TEST(Config, ExpertsFollowTheFile) {
  const std::string base = R"({"architectures": ["Qwen3MoeForCausalLM"], "vocab_size": 100,
      "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 6, "num_attention_heads": 4,
      "moe_intermediate_size": 12, "num_experts_per_tok": 3)";
  const ModelConfig plain = parse(base + R"(, "num_experts": 10})");
  for (int64_t i = 0; i < 6; ++i) {
    ASSERT_NE(experts(plain, i), nullptr) << i;
    EXPECT_FALSE(experts(plain, i)->norm_topk);
    EXPECT_EQ(experts(plain, i)->num_experts, 10);
  }
  const ModelConfig mixed =
      parse(base + R"(, "num_local_experts": 8, "decoder_sparse_step": 2, "mlp_only_layers": [3],
      "norm_topk_prob": true})");
  for (int64_t i = 0; i < 6; ++i) EXPECT_EQ(experts(mixed, i) != nullptr, i == 1 || i == 5) << i;
  EXPECT_TRUE(experts(mixed, 1)->norm_topk);
  EXPECT_EQ(experts(mixed, 1)->num_experts, 8);
  EXPECT_THAT(message_of(base + R"(, "num_experts": 4, "num_local_experts": 8})"),
              HasSubstr("disagree"));
  EXPECT_THAT(message_of(base + R"(, "num_experts": 2})"), HasSubstr("num_experts_per_tok"));
}

// Keys that transformers 5 calls otherwise: one name is enough, and two must agree.
TEST(Config, TwoNamesOfOneKeyMustAgree) {
  const std::string v3 = R"({"architectures": ["DeepseekV3ForCausalLM"], "vocab_size": 100,
      "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 6, "num_attention_heads": 4)";
  EXPECT_EQ(experts(parse(v3 + R"(, "num_local_experts": 64})"), 5)->num_experts, 64);
  EXPECT_EQ(
      experts(parse(v3 + R"(, "n_routed_experts": 64, "num_local_experts": 64})"), 5)->num_experts,
      64);
  EXPECT_THAT(message_of(v3 + R"(, "n_routed_experts": 64, "num_local_experts": 128})"),
              HasSubstr("n_routed_experts 64 and num_local_experts 128 disagree"));
  EXPECT_EQ(parse(v3 + R"(, "num_mtp_layers": 2})").num_mtp_layers, 2);
  EXPECT_THAT(message_of(v3 + R"(, "num_nextn_predict_layers": 1, "num_mtp_layers": 2})"),
              HasSubstr("num_nextn_predict_layers 1 and num_mtp_layers 2 disagree"));
}

// Of Llama 4 Scout both are 1.
TEST(Config, Llama3ScalingMayHaveNothingBetweenItsBands) {
  const std::string scaling = R"("rope_scaling": {"rope_type": "llama3", "factor": 16.0,
      "low_freq_factor": LOW, "high_freq_factor": 1.0, "original_max_position_embeddings": 8192})";
  const auto with_low = [&](const std::string& low) {
    std::string text = scaling;
    return llama(text.replace(text.find("LOW"), 3, low));
  };
  RopeConfig rope = parse(with_low("1.0")).ropes[0].config;
  rope.theta = 500000.0;
  const auto scaled = rope_frequencies(rope, 128);
  rope.type = RopeType::kDefault;
  const auto plain = rope_frequencies(rope, 128);
  for (size_t i = 0; i < plain.size(); ++i) {
    const bool is_long = 2.0 * std::numbers::pi / plain[i] > 8192.0;
    EXPECT_EQ(scaled[i], is_long ? plain[i] / 16.0 : plain[i]);
  }
  // A wavelength of exactly the length is not divided.
  rope = {.type = RopeType::kLlama3,
          .theta = 1.0,
          .factor = 16.0,
          .high_freq_factor = 1.0,
          .original_max_position_embeddings = 2.0 * std::numbers::pi};
  EXPECT_EQ(rope_frequencies(rope, 2)[0], 1.0);
  EXPECT_THAT(message_of(with_low("2.0")), HasSubstr("high_freq_factor must not be below"));
}

TEST(Config, Llama3ScalingHasItsThreeBands) {
  RopeConfig rope = {.type = RopeType::kLlama3,
                     .theta = 500000.0,
                     .factor = 8.0,
                     .low_freq_factor = 1.0,
                     .high_freq_factor = 4.0,
                     .original_max_position_embeddings = 8192.0};
  const auto scaled = rope_frequencies(rope, 128);
  rope.type = RopeType::kDefault;
  const auto plain = rope_frequencies(rope, 128);
  EXPECT_EQ(scaled[0], plain[0]);                 // short wavelengths stay
  EXPECT_DOUBLE_EQ(scaled[63], plain[63] / 8.0);  // long ones are divided
  int blended = 0;
  for (size_t i = 0; i < plain.size(); ++i) {
    const double wavelength = 2.0 * std::numbers::pi / plain[i];
    if (wavelength < 2048.0 || wavelength > 8192.0) continue;
    const double smooth = (8192.0 / wavelength - 1.0) / 3.0;
    EXPECT_NEAR(scaled[i], plain[i] * ((1.0 - smooth) / 8.0 + smooth), 1e-15);
    ++blended;
  }
  EXPECT_GT(blended, 2);
}

}  // namespace
}  // namespace strata::model
