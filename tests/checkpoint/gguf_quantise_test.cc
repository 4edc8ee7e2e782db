// SPDX-License-Identifier: Apache-2.0
// What is written as blocks, on values of many sizes, ties and zeros, to the bit: against gguf-py
// (tools/golden/make_gguf.py --quantised) and, of K-quants and what stands in for them, against
// llama.cpp's own quantizer (tools/golden/make_k_quants.py); and names both ways.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include "base/files.h"
#include "checkpoint/gguf/names.h"
#include "checkpoint/gguf/quantise.h"
#include "tests/checkpoint/safetensors_bytes.h"

namespace strata {
namespace {

// The types of a file, of which everything that is quantised has the bytes there.
std::set<std::string> types_that_equal(const char* file) {
  const std::string bytes = read_file(testing::data_path(file), 1 << 24);
  std::set<std::string> seen;
  for (size_t at = 0; at < bytes.size();) {
    std::string name(bytes.data() + at);
    for (char& c : name) c = static_cast<char>(std::tolower(c));
    uint32_t sizes[3];  // blocks, and bytes and elements of each
    std::memcpy(sizes, bytes.data() + at + 8, sizeof(sizes));
    at += 8 + sizeof(sizes);
    SCOPED_TRACE(name);
    const GgufEncoding* encoding = find_gguf_encoding(name);
    if (encoding == nullptr || encoding->type->block_bytes != sizes[1]) {
      ADD_FAILURE() << "another encoding";
      return seen;
    }
    std::vector<float> values(size_t{sizes[0]} * sizes[2]);
    std::memcpy(values.data(), bytes.data() + at, values.size() * sizeof(float));
    at += values.size() * sizeof(float);
    std::string got(size_t{sizes[0]} * sizes[1], '\0');
    encoding->quantise(values.data(), sizes[0], reinterpret_cast<std::byte*>(got.data()));
    const std::string wanted = bytes.substr(at, got.size());
    const auto differing = std::ranges::mismatch(got, wanted).in1 - got.begin();
    EXPECT_EQ(differing, std::ssize(got)) << "the first byte that differs";
    at += got.size();
    seen.insert(name);
  }
  return seen;
}

TEST(GgufQuantise, EqualsGgufPy) {
  EXPECT_EQ(types_that_equal("gguf_quantised.bin"),
            (std::set<std::string>{"bf16", "f16", "mxfp4", "q4_0", "q8_0"}));
}

TEST(GgufQuantise, EqualsLlamaCpp) {
  EXPECT_EQ(types_that_equal("gguf_k_quants.bin"),
            (std::set<std::string>{"q4_k", "q5_0", "q5_1", "q5_k", "q6_k"}));
}

// Of values that are no finite numbers, or as large as they get, too: every byte is written, and
// none is read that is not there.
TEST(GgufQuantise, TakesAnyValues) {
  const float odd[] = {std::numeric_limits<float>::quiet_NaN(),
                       std::numeric_limits<float>::infinity(), -1.0f,
                       std::numeric_limits<float>::max(), std::numeric_limits<float>::denorm_min()};
  std::vector<float> values(256);
  for (size_t i = 0; i < values.size(); ++i) values[i] = odd[i % std::size(odd)];
  for (const char* name : {"q4_k", "q5_k", "q6_k", "q5_0", "q5_1"}) {
    const GgufEncoding& encoding = *find_gguf_encoding(name);
    const auto blocks = static_cast<int64_t>(256 / encoding.type->block_elements);
    std::string once(static_cast<size_t>(blocks * encoding.type->block_bytes), '\0');
    std::string twice(once.size(), '\xff');
    for (std::string* to : {&once, &twice})
      encoding.quantise(values.data(), blocks, reinterpret_cast<std::byte*>(to->data()));
    EXPECT_EQ(once, twice) << name;
  }
}

TEST(GgufNames, GoBothWays) {
  const auto stored = [](const char* architecture, const char* name) {
    return gguf_stored_name(*find_gguf_architecture(architecture), name, /*num_layers=*/24);
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
  EXPECT_EQ(stored("qwen35", "mtp.fc.weight"), "blk.24.nextn.eh_proj.weight");
  EXPECT_EQ(stored("qwen35", "mtp.norm.weight"), "blk.24.nextn.shared_head_norm.weight");
  EXPECT_EQ(stored("qwen35moe", "mtp.layers.0.mlp.experts.3.up_proj.weight"),
            "blk.24.ffn_up_exps.weight");
  EXPECT_EQ(stored("qwen35", "mtp.layers.0.post_attention_layernorm.weight"),
            "blk.24.post_attention_norm.weight");
  EXPECT_EQ(stored("qwen3", "mtp.fc.weight"), "");
  EXPECT_EQ(huggingface_name_in_mtp(*find_gguf_architecture("qwen35"), "nextn.hnorm.weight"),
            "mtp.pre_fc_norm_hidden.weight");
  EXPECT_EQ(huggingface_name_in_mtp(*find_gguf_architecture("qwen35"), "attn_q.weight"),
            "mtp.layers.0.self_attn.q_proj.weight");
  EXPECT_EQ(stored("llama", "model.layers.3.mlp.unknown.weight"), "");
  EXPECT_EQ(stored("llama", "visual.blocks.0.weight"), "");
  EXPECT_EQ(huggingface_name_in_layer(*find_gguf_architecture("gemma3"), "ffn_norm.weight"),
            "pre_feedforward_layernorm.weight");
}

}  // namespace
}  // namespace strata
