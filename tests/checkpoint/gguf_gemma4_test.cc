// SPDX-License-Identifier: Apache-2.0
// Keys of Gemma 4's GGUF files: sizes that differ between layers, and what no model has.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "base/files.h"
#include "checkpoint/gguf/gguf_source.h"
#include "tests/checkpoint/gguf_source_fixture.h"

namespace strata {
namespace {

using testing::GgufBytes;
using testing::GgufSourceTest;
using testing::raw;

// Two layers of Gemma 4, of which the second one attends to all and has wider heads.
class Gemma4Gguf : public GgufSourceTest {
 protected:
  Gemma4Gguf() : bytes_(model("gemma4")) {
    set("block_count", 2);
    set("attention.key_length", 8);
    set("attention.key_length_swa", 4);
    set("attention.sliding_window", 5);
    set_pattern({true, false});
    bytes_.tensors.push_back(counting("blk.1.attn_k.weight", {8, 8}));
    set_divisors({1.0f, 1.0f, 1e30f, 1e30f});
  }
  void set(const std::string& key, uint32_t value) {
    drop(key);
    bytes_.keys.push_back(testing::key_u32("gemma4." + key, value));
  }
  void set_list(const std::string& key, const std::vector<uint32_t>& values) {
    drop(key);
    std::string items;
    for (const uint32_t value : values) items += raw(value);
    bytes_.keys.push_back(testing::key_list("gemma4." + key, 4, values.size(), items));
  }
  void set_pattern(const std::vector<bool>& sliding) {
    drop("attention.sliding_window_pattern");
    std::string items;
    for (const bool slides : sliding) items += slides ? '\1' : '\0';
    bytes_.keys.push_back(
        testing::key_list("gemma4.attention.sliding_window_pattern", 7, sliding.size(), items));
  }
  void set_divisors(const std::vector<float>& divisors) {
    std::erase_if(bytes_.tensors, [](const auto& each) { return each.name == kDivisors; });
    std::string data;
    for (const float divisor : divisors) data += raw(divisor);
    bytes_.tensors.push_back({kDivisors, {divisors.size()}, 0, data});
  }
  void drop(const std::string& key) {
    const std::string named = testing::gguf_text("gemma4." + key);
    std::erase_if(bytes_.keys, [&](const std::string& each) { return each.starts_with(named); });
  }
  std::string config() { return gguf_texts(write(bytes_)).read("config.json", 1 << 20); }
  void expect_fault(const std::string& words) {
    const std::string got = config_fault(bytes_);
    EXPECT_NE(got.find(words), std::string::npos) << "got '" << got << "', want '" << words << "'";
  }

  static constexpr const char* kDivisors = "rope_freqs.weight";
  GgufBytes bytes_;
};

TEST_F(Gemma4Gguf, SizesOfLayersAreRead) {
  set_list("attention.head_count_kv", {2, 1});
  set("attention.shared_kv_layers", 1);
  set_list("feed_forward_length", {16, 32});
  const std::string text = config();
  for (const char* member :
       {R"("num_key_value_heads": 2)", R"("num_global_key_value_heads": 1)", R"("head_dim": 4)",
        R"("global_head_dim": 8)", R"("attention_k_eq_v": true)", R"("num_kv_shared_layers": 1)",
        R"("intermediate_size": 16)", R"("use_double_wide_mlp": true)",
        R"("partial_rotary_factor": 0.5)", R"("final_logit_softcapping": null)",
        R"("enable_moe_block": false)", R"("hidden_size_per_layer_input": 0)"}) {
    EXPECT_NE(text.find(member), std::string::npos) << member << " in " << text;
  }
  // Of six pairs one turns, which a sixth does to the last bit.
  set("attention.key_length", 98);
  std::vector<float> divisors(49, 1e30f);
  for (size_t turning = 0; turning <= divisors.size(); ++turning) {
    if (turning > 0) divisors[turning - 1] = 1.0f;
    set_divisors(divisors);
    const std::string made = config();
    const std::string name = "\"partial_rotary_factor\": ";
    const double factor = std::stod(made.substr(made.find(name) + name.size()));
    EXPECT_EQ(std::floor(factor * 98.0 / 2.0), static_cast<double>(turning));
  }
}

TEST_F(Gemma4Gguf, WhatNoModelHasIsRefusedByName) {
  EXPECT_EQ(config_fault(bytes_), "");
  const GgufBytes good = bytes_;
  const auto expect = [&](const std::string& words) {
    expect_fault(words);
    bytes_ = good;
  };
  set_pattern({true, true});
  expect("'gemma4.attention.sliding_window_pattern': the last layer slides");
  set_pattern({true});
  expect("has fewer items than there are layers");
  set("block_count", 0);
  bytes_.tensors.pop_back();
  expect("'gemma4.block_count': got 0");
  set_list("attention.head_count_kv", {1, 2, 3});
  set("block_count", 4);
  set_pattern({true, true, true, false});
  expect("'gemma4.attention.head_count_kv': 3 values of 4 layers");
  set("block_count", 3);
  set_pattern({true, true, false});
  set_list("attention.head_count_kv", {1, 2, 1});
  expect("got 1 and 2 of layers that slide");
  set_list("attention.head_count_kv", {2, 1});
  bytes_.tensors.push_back(counting("blk.1.attn_v.weight", {8, 8}));
  expect("got 2 in layers that slide and 1 in others");
  set_list("feed_forward_length", {16, 32});
  expect("got 32 of layer 1 and 16 of the first one");
  set("attention.shared_kv_layers", 2);
  expect("'gemma4.attention.shared_kv_layers': got 2, want 0 to 1");
  set("attention.value_length_swa", 6);
  expect("'gemma4.attention.value_length_swa': got 6, only that of keys, 4");
  set("rope.dimension_count_swa", 2);
  expect("'gemma4.rope.dimension_count_swa': got 2 of heads of 4");
  set("embedding_length_per_layer_input", 2);
  expect("'per_layer_token_embd.weight' is missing");
  set_divisors({1.0f, 1e30f, 1.0f, 1e30f});
  expect("no list of ones and, behind them, 1e30");
  set_divisors({1.0f, 1e30f});
  expect("rope_freqs.weight is no F32 [4]");
  bytes_.tensors.pop_back();
  expect("rope_freqs.weight is no F32 [4]");
  bytes_.keys.push_back(testing::key_text("gemma4.rope.scaling.type", "yarn"));
  expect("'gemma4.rope.scaling.type': got 'yarn', only none");
  drop("attention.sliding_window");
  expect("gemma4.attention.sliding_window");
}

}  // namespace
}  // namespace strata
