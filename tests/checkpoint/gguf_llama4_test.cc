// SPDX-License-Identifier: Apache-2.0
// Llama 4's GGUF files: what their keys say and llama.cpp's constants add, experts in one tensor a
// projection, and what no such model has.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>

#include "base/files.h"
#include "checkpoint/gguf/gguf_source.h"
#include "checkpoint/gguf/llama3_scaling.h"
#include "tests/checkpoint/gguf_source_fixture.h"

namespace strata {
namespace {

using testing::GgufBytes;
using testing::GgufSourceTest;

class Llama4Gguf : public GgufSourceTest {
 protected:
  Llama4Gguf() : bytes_(model("llama4")) {
    set("expert_count", 3);
    set("expert_used_count", 1);
    set("expert_feed_forward_length", 6);
    set("interleave_moe_layer_step", 2);
  }
  void set(const std::string& key, uint32_t value) {
    drop(key);
    bytes_.keys.push_back(testing::key_u32("llama4." + key, value));
  }
  void drop(const std::string& key) {
    const std::string named = testing::gguf_text("llama4." + key);
    std::erase_if(bytes_.keys, [&](const std::string& each) { return each.starts_with(named); });
  }
  std::string config() { return gguf_texts(write(bytes_)).read("config.json", 1 << 20); }
  void expect_fault(const std::string& words) {
    const std::string got = config_fault(bytes_);
    EXPECT_NE(got.find(words), std::string::npos) << "got '" << got << "', want '" << words << "'";
  }

  GgufBytes bytes_;
};

TEST_F(Llama4Gguf, KeysAndConstantsAreMembers) {
  const std::string text = config();
  for (const char* member :
       {R"("intermediate_size": 6)", R"("intermediate_size_mlp": 16)", R"("num_local_experts": 3)",
        R"("num_experts_per_tok": 1)", R"("interleave_moe_layer_step": 2)",
        R"("use_qk_norm": true)", R"("no_rope_layer_interval": 4)",
        R"("attention_chunk_size": 8192)", R"("floor_scale": 8192)", R"("attn_scale": 0.1)"}) {
    EXPECT_NE(text.find(member), std::string::npos) << member << " is not in " << text;
  }
  set("expert_count", 128);
  EXPECT_NE(config().find(R"("use_qk_norm": false)"), std::string::npos);
}

TEST_F(Llama4Gguf, ExpertsAreParted) {
  bytes_.tensors.push_back(counting("blk.0.ffn_up_exps.weight", {2, 2, 3}));
  bytes_.tensors.push_back(counting("blk.0.ffn_gate_inp.weight", {2, 3}));
  bytes_.tensors.push_back(counting("blk.0.ffn_down_shexp.weight", {2, 3}));
  // Their rows are as Hugging Face has them, pairs of neighbours.
  bytes_.tensors.push_back(counting("blk.0.attn_q.weight", {1, 8}));
  const GgufSource source(write(bytes_));
  const auto values = [&](const std::string& name) {
    const CheckpointTensor* tensor = source.find("model.layers.0." + name);
    EXPECT_NE(tensor, nullptr) << name;
    std::vector<float> out(
        tensor == nullptr ? 0 : static_cast<size_t>(tensor->info.shape.num_elements()));
    if (tensor != nullptr) source.read_f32(*tensor, 0, std::ssize(out), out.data());
    return out;
  };
  EXPECT_EQ(values("feed_forward.experts.2.up_proj.weight"), (std::vector<float>{8, 9, 10, 11}));
  EXPECT_EQ(values("feed_forward.router.weight").size(), 6u);
  EXPECT_EQ(values("feed_forward.shared_expert.down_proj.weight").size(), 6u);
  EXPECT_EQ(values("self_attn.q_proj.weight"), (std::vector<float>{0, 1, 2, 3, 4, 5, 6, 7}));
}

TEST_F(Llama4Gguf, WhatNoSuchModelHasIsRefused) {
  set("attention.sliding_window", 0);
  expect_fault("key 'llama4.attention.sliding_window'");
  drop("attention.sliding_window");
  set("interleave_moe_layer_step", 0);
  expect_fault("key 'llama4.interleave_moe_layer_step': got 0");
  set("interleave_moe_layer_step", 1);
  set("expert_count", 0);
  expect_fault("key 'llama4.expert_count'");
  set("expert_count", 3);
  drop("feed_forward_length");
  expect_fault("llama4.feed_forward_length");
}

// Both factors of Scout's scaling are 1: divisors are one or the factor.
TEST(Llama3Scaling, ATableWithoutAMiddleIsFound) {
  for (const double original : {8192.0, 32.0, 64.0}) {
    const auto divisors =
        llama3_divisors({.factor = 16.0, .high = 1.0, .original = original}, 5e5, 64);
    const auto found = find_llama3_scaling(divisors, 5e5);
    ASSERT_TRUE(found.has_value()) << original;
    EXPECT_EQ(found->factor, 16.0);
    EXPECT_EQ(found->high, 1.0);
    // The same divisors, of whatever length.
    EXPECT_EQ(llama3_divisors(*found, 5e5, 64), divisors);
  }
  // As the published files have it.
  const auto scout = llama3_divisors({.factor = 16.0, .high = 1.0, .original = 8192.0}, 5e5, 64);
  EXPECT_EQ(find_llama3_scaling(scout, 5e5)->original, 8192.0);
}

}  // namespace
}  // namespace strata
