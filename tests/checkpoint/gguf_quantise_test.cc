// SPDX-License-Identifier: Apache-2.0
// What is written as blocks, against gguf-py on values of many sizes, ties and zeros
// (tools/golden/make_gguf.py --quantised), to the bit; and names both ways.
#include <gtest/gtest.h>

#include <cstring>
#include <set>

#include "base/files.h"
#include "checkpoint/gguf/names.h"
#include "checkpoint/gguf/quantise.h"
#include "tests/checkpoint/safetensors_bytes.h"

namespace strata {
namespace {

TEST(GgufQuantise, EqualsGgufPy) {
  const std::string bytes = read_file(testing::data_path("gguf_quantised.bin"), 1 << 24);
  std::set<std::string> seen;
  for (size_t at = 0; at < bytes.size();) {
    std::string name(bytes.data() + at);
    for (char& c : name) c = static_cast<char>(std::tolower(c));
    uint32_t sizes[3];  // blocks, and bytes and elements of each
    std::memcpy(sizes, bytes.data() + at + 8, sizeof(sizes));
    at += 8 + sizeof(sizes);
    SCOPED_TRACE(name);
    const GgufEncoding* encoding = find_gguf_encoding(name);
    ASSERT_NE(encoding, nullptr);
    ASSERT_EQ(encoding->type->block_bytes, sizes[1]);
    std::vector<float> values(size_t{sizes[0]} * sizes[2]);
    std::memcpy(values.data(), bytes.data() + at, values.size() * sizeof(float));
    at += values.size() * sizeof(float);
    std::string got(size_t{sizes[0]} * sizes[1], '\0');
    encoding->quantise(values.data(), sizes[0], reinterpret_cast<std::byte*>(got.data()));
    for (size_t i = 0; i < got.size(); ++i) {
      ASSERT_EQ(got[i], bytes[at + i]) << "block " << i / sizes[1] << ", byte " << i % sizes[1];
    }
    at += got.size();
    seen.insert(name);
  }
  EXPECT_EQ(seen, (std::set<std::string>{"bf16", "f16", "mxfp4", "q4_0", "q8_0"}));
}

TEST(GgufNames, GoBothWays) {
  const auto stored = [](const char* architecture, const char* name) {
    return gguf_stored_name(*find_gguf_architecture(architecture), name);
  };
  EXPECT_EQ(stored("llama", "model.embed_tokens.weight"), "token_embd.weight");
  EXPECT_EQ(stored("qwen2", "model.layers.12.self_attn.q_proj.bias"), "blk.12.attn_q.bias");
  EXPECT_EQ(stored("qwen3", "model.layers.0.post_attention_layernorm.weight"),
            "blk.0.ffn_norm.weight");
  EXPECT_EQ(stored("gemma3", "model.layers.0.post_attention_layernorm.weight"),
            "blk.0.post_attention_norm.weight");
  EXPECT_EQ(stored("gemma3", "model.layers.0.pre_feedforward_layernorm.weight"),
            "blk.0.ffn_norm.weight");
  EXPECT_EQ(stored("qwen3moe", "model.layers.1.mlp.experts.13.down_proj.weight"),
            "blk.1.ffn_down_exps.weight");
  EXPECT_EQ(stored("qwen35", "model.layers.1.linear_attn.A_log"), "blk.1.ssm_a");
  EXPECT_EQ(stored("deepseek2", "model.layers.3.mlp.gate.e_score_correction_bias"),
            "blk.3.exp_probs_b.bias");
  EXPECT_EQ(stored("llama", "model.layers.3.mlp.unknown.weight"), "");
  EXPECT_EQ(stored("llama", "visual.blocks.0.weight"), "");
  EXPECT_EQ(huggingface_name_in_layer(*find_gguf_architecture("gemma3"), "ffn_norm.weight"),
            "pre_feedforward_layernorm.weight");
}

}  // namespace
}  // namespace strata
