// SPDX-License-Identifier: Apache-2.0
// A GGUF file as a source of weights: every part of every tensor alike, orders and names undone,
// what is not supported refused by name, and hostile files harmless.
#include "checkpoint/gguf/gguf_source.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <numeric>

#include "base/files.h"
#include "tests/base/temp_dir.h"
#include "tests/checkpoint/gguf_bytes.h"
#include "tests/checkpoint/gguf_source_fixture.h"
#include "tests/ops/narrow_rows.h"

namespace strata {
namespace {

using testing::GgufBytes;
using testing::GgufSourceTest;
using testing::raw;

std::vector<std::string> files_in(const std::string& folder) {
  std::vector<std::string> files;
  for (const auto& entry :
       std::filesystem::directory_iterator(std::string(STRATA_SOURCE_DIR) + folder)) {
    if (entry.path().extension() != ".json") files.push_back(entry.path().string());
  }
  std::sort(files.begin(), files.end());
  return files;
}

std::vector<float> all_of(const CheckpointSource& source, const CheckpointTensor& tensor) {
  std::vector<float> values(static_cast<size_t>(tensor.info.shape.num_elements()));
  source.read_f32(tensor, 0, std::ssize(values), values.data());
  return values;
}

TEST(GgufSource, EveryPartIsThatOfTheWhole) {
  const std::vector<std::string> files = files_in("/tests/golden/gguf");
  ASSERT_GE(files.size(), 20u);
  for (const std::string& path : files) {
    SCOPED_TRACE(path);
    const GgufSource source(path);
    EXPECT_GT(source.tensors().size(), 10u);
    for (const CheckpointTensor& tensor : source.tensors()) {
      const std::vector<float> whole = all_of(source, tensor);
      const int64_t count = std::ssize(whole);
      for (const auto& [first, last] : {std::pair{int64_t{0}, count / 3},
                                        {count / 3, count},
                                        {count / 2, count / 2 + 1},
                                        {count, count}}) {
        std::vector<float> part(static_cast<size_t>(last - first));
        source.read_f32(tensor, first, last - first, part.data());
        EXPECT_TRUE(part.empty() || std::memcmp(part.data(), whole.data() + first,
                                                part.size() * sizeof(float)) == 0)
            << tensor.info.name << " " << first;
      }
    }
  }
}

TEST_F(GgufSourceTest, RowsOfHeadsBecomeHalvesAgain) {
  GgufBytes bytes = model("llama");
  bytes.tensors.push_back(counting("blk.0.attn_q.weight", {1, 8}));
  bytes.tensors.push_back(counting("blk.0.attn_k.bias", {4}));
  bytes.tensors.push_back(counting("blk.0.attn_v.weight", {1, 4}));
  const GgufSource source(write(bytes));
  EXPECT_EQ(all_of(source, *source.find("model.layers.0.self_attn.q_proj.weight")),
            (std::vector<float>{0, 2, 1, 3, 4, 6, 5, 7}));
  EXPECT_EQ(all_of(source, *source.find("model.layers.0.self_attn.k_proj.bias")),
            (std::vector<float>{0, 2, 1, 3}));
  EXPECT_EQ(all_of(source, *source.find("model.layers.0.self_attn.v_proj.weight")),
            (std::vector<float>{0, 1, 2, 3}));
}

// llama.cpp refuses such a file too ("wrong number of tensors").
TEST_F(GgufSourceTest, LayersBeyondItsBlockCountAreRefused) {
  GgufBytes bytes = model("llama");
  bytes.tensors.push_back(counting("blk.1.attn_v.weight", {1, 4}));
  const std::string path = write(bytes);
  EXPECT_EQ(testing::error_of([&] { const GgufSource source(path); }),
            path +
                ": tensor 'blk.1.attn_v.weight' [4, 1]: the file has 1 layers by its key "
                "llama.block_count; is it of a larger model?");
  // Those of multi-token prediction count, and take no part.
  bytes.keys[1] = testing::key_u32("llama.block_count", 2);
  bytes.keys.push_back(testing::key_u32("llama.nextn_predict_layers", 1));
  const GgufSource source(write(bytes));
  EXPECT_EQ(source.find("model.layers.1.self_attn.v_proj.weight"), nullptr);
}

// One layer behind the decoder's is known of Qwen3.5, in whose files norms are stored + 1.
TEST_F(GgufSourceTest, MultiTokenPredictionOfQwen35IsRead) {
  GgufBytes bytes = model("qwen35");
  const auto set = [&](size_t blocks, uint32_t extra) {
    bytes.keys[1] = testing::key_u32("qwen35.block_count", static_cast<uint32_t>(blocks));
    bytes.keys.push_back(testing::key_u32("qwen35.nextn_predict_layers", extra));
  };
  set(2, 1);
  for (const char* name : {"nextn.eh_proj.weight", "nextn.enorm.weight", "nextn.hnorm.weight",
                           "nextn.shared_head_norm.weight", "attn_norm.weight", "attn_v.weight"})
    bytes.tensors.push_back(counting(std::string("blk.1.") + name, {2}));
  const GgufSource source(write(bytes));
  const std::vector<float> stored = {0, 1}, minus_one = {-1, 0};
  EXPECT_EQ(all_of(source, *source.find("mtp.fc.weight")), stored);
  EXPECT_EQ(all_of(source, *source.find("mtp.pre_fc_norm_embedding.weight")), minus_one);
  EXPECT_EQ(all_of(source, *source.find("mtp.pre_fc_norm_hidden.weight")), minus_one);
  EXPECT_EQ(all_of(source, *source.find("mtp.norm.weight")), minus_one);
  EXPECT_EQ(all_of(source, *source.find("mtp.layers.0.input_layernorm.weight")), minus_one);
  EXPECT_EQ(all_of(source, *source.find("mtp.layers.0.self_attn.v_proj.weight")), stored);
  // Chains of several take no part.
  bytes.keys.pop_back();
  set(3, 2);
  const GgufSource chain(write(bytes));
  EXPECT_EQ(chain.find("mtp.fc.weight"), nullptr);
}

TEST_F(GgufSourceTest, FusedQueriesKeysAndValuesAreParted) {
  GgufBytes bytes = model("llama");
  bytes.tensors.push_back(counting("blk.0.attn_qkv.weight", {1, 16}));
  bytes.tensors.push_back(counting("blk.0.attn_qkv.bias", {16}));
  const GgufSource source(write(bytes));
  for (const char* ending : {"weight", "bias"}) {
    const auto part = [&](const std::string& name) {
      return all_of(source, *source.find("model.layers.0.self_attn." + name + "_proj." + ending));
    };
    EXPECT_EQ(part("q"), (std::vector<float>{0, 2, 1, 3, 4, 6, 5, 7})) << ending;
    EXPECT_EQ(part("k"), (std::vector<float>{8, 10, 9, 11})) << ending;
    EXPECT_EQ(part("v"), (std::vector<float>{12, 13, 14, 15})) << ending;
  }
}

// A width of one has no halves.
TEST_F(GgufSourceTest, FusedHeadsOfOddWidthAreRefused) {
  GgufBytes bytes = model("llama");
  bytes.keys.push_back(testing::key_u32("llama.attention.key_length", 1));
  bytes.tensors.push_back(counting("blk.0.attn_qkv.weight", {1, 4}));
  EXPECT_NE(source_fault(bytes).find("no 2 heads of even width"), std::string::npos);
}

// Either half may be of a type that cannot be read; the whole is then a fault by that type's name.
TEST_F(GgufSourceTest, AHalfOfKvBThatCannotBeReadIsNamed) {
  constexpr uint32_t kF32 = 0, kI8 = 24;
  for (const auto& [keys, values] : {std::pair(kF32, kI8), std::pair(kI8, kF32)}) {
    GgufBytes bytes = model("deepseek2");
    bytes.tensors.push_back(
        {"blk.0.attn_k_b.weight", {3, 2, 2}, keys, std::string(keys == kI8 ? 12 : 48, 1)});
    bytes.tensors.push_back(
        {"blk.0.attn_v_b.weight", {2, 4, 2}, values, std::string(values == kI8 ? 16 : 64, 1)});
    const GgufSource source(write(bytes));
    const CheckpointTensor& tensor = *source.find("model.layers.0.self_attn.kv_b_proj.weight");
    EXPECT_FALSE(tensor.info.readable);
    EXPECT_EQ(tensor.info.dtype_name, "I8");
    EXPECT_NE(testing::error_of([&] { all_of(source, tensor); }).find("I8"), std::string::npos);
  }
}

TEST_F(GgufSourceTest, AModelWithoutEmbeddingOrWidthIsRefused) {
  GgufBytes bytes = model("llama");
  bytes.tensors.clear();
  EXPECT_NE(config_fault(bytes).find("'token_embd.weight' is missing"), std::string::npos);
  bytes = model("llama");
  std::erase_if(bytes.keys, [](const std::string& key) {
    return key.find("feed_forward_length") != std::string::npos;
  });
  EXPECT_NE(config_fault(bytes).find("'llama.feed_forward_length': got nothing"),
            std::string::npos);
}

TEST_F(GgufSourceTest, FusedExpertsAreParted) {
  GgufBytes bytes = model("qwen3moe");
  bytes.tensors.push_back(counting("blk.0.ffn_gate_up_exps.weight", {2, 4, 3}));
  const GgufSource source(write(bytes));
  const auto part = [&](const std::string& name) {
    return all_of(source, *source.find("model.layers.0.mlp.experts." + name + "_proj.weight"));
  };
  EXPECT_EQ(part("0.gate"), (std::vector<float>{0, 1, 2, 3}));
  EXPECT_EQ(part("2.gate"), (std::vector<float>{16, 17, 18, 19}));
  EXPECT_EQ(part("2.up"), (std::vector<float>{20, 21, 22, 23}));
}

// The sum that is stored is what an op that adds 1 gets again, whatever bits the weight lost.
TEST_F(GgufSourceTest, NormsOfOneMoreGiveTheirSumAgain) {
  GgufBytes bytes = model("gemma3");
  std::string data;
  std::vector<float> sums;
  for (int i = 0; i < 2000; ++i) {
    const float weight = std::ldexp(static_cast<float>(std::sin(i * 0.7)), i % 40 - 30);
    sums.push_back(1.0f + weight);
    data += raw(sums.back());
  }
  bytes.tensors.push_back({"blk.0.attn_norm.weight", {2000}, 0, data});
  const GgufSource source(write(bytes));
  const auto weights = all_of(source, *source.find("model.layers.0.input_layernorm.weight"));
  for (size_t i = 0; i < sums.size(); ++i) ASSERT_EQ(1.0f + weights[i], sums[i]) << i;
}

TEST_F(GgufSourceTest, TypesThatAreNotReadAreNamed) {
  GgufBytes bytes = model("llama");
  bytes.tensors.push_back({"blk.0.ffn_up.weight", {256}, 16, std::string(66, '\0')});
  const GgufSource source(write(bytes));
  const CheckpointTensor& tensor = *source.find("model.layers.0.mlp.up_proj.weight");
  EXPECT_FALSE(tensor.info.readable);
  EXPECT_EQ(tensor.info.dtype_name, "IQ2_XXS");
  std::vector<float> values(256);
  const std::string fault =
      testing::error_of([&] { source.read_f32(tensor, 0, 256, values.data()); });
  EXPECT_NE(fault.find("'blk.0.ffn_up.weight': IQ2_XXS [256] cannot be read; supported are F32"),
            std::string::npos)
      << fault;
}

TEST_F(GgufSourceTest, AScaleThatIsNoNumberIsNamed) {
  GgufBytes bytes = model("llama");
  std::string data(3 * 34, '\0');
  data[34 + 1] = '\x7c';
  bytes.tensors.push_back({"blk.0.ffn_up.weight", {32, 3}, 8, data});
  const GgufSource source(write(bytes));
  std::vector<float> values(96);
  const std::string fault = testing::error_of([&] {
    source.read_f32(*source.find("model.layers.0.mlp.up_proj.weight"), 0, 96, values.data());
  });
  EXPECT_NE(fault.find("the scale of block 1 (Q8_0) is no finite number"), std::string::npos)
      << fault;
}

// Two experts of one row of 64, in NVFP4: block scales of 1 and codes of 1.
testing::GgufTensorBytes nvfp4_experts() {
  const std::string block = std::string(4, '\x38') + std::string(32, '\x22');
  return {"blk.0.ffn_up_exps.weight", {64, 1, 2}, 40, block + block};
}

TEST_F(GgufSourceTest, ScalesOfTensorsInNvfp4Multiply) {
  for (const char* name : {"blk.0.ffn_up_exps.scale", "blk.0.ffn_up_exps.weight.scale"}) {
    GgufBytes bytes = model("qwen3moe");
    bytes.tensors.push_back(nvfp4_experts());
    bytes.tensors.push_back({name, {2}, 0, raw(0.75f) + raw(1.1f)});
    bytes.tensors.push_back({"blk.0.ffn_up_exps.input_scale", {1}, 0, raw(9.0f)});
    const GgufSource source(write(bytes));
    EXPECT_EQ(source.tensors().size(), 3u);
    for (const auto& [expert, scale] : {std::pair("0", 0.75f), std::pair("1", 1.1f)}) {
      const CheckpointTensor* up =
          source.find("model.layers.0.mlp.experts." + std::string(expert) + ".up_proj.weight");
      ASSERT_NE(up, nullptr);
      EXPECT_EQ(all_of(source, *up), std::vector<float>(64, scale));
      ASSERT_EQ(source.narrow_form(*up), NarrowForm::kNvfp4);
      std::vector<std::byte> row(
          static_cast<size_t>(narrow_layout(NarrowForm::kNvfp4).row_bytes(64)));
      source.read_quantised_rows(*up, 0, 1, row.data());
      const ops::testing::NarrowMatrix kept(NarrowForm::kNvfp4, 1, 64, std::move(row));
      EXPECT_EQ(kept.f32(0, 63), scale);
    }
  }
}

TEST_F(GgufSourceTest, ScalesOfTensorsInNvfp4ThatDoNotFitAreFaults) {
  const auto fault_with = [&](testing::GgufTensorBytes scale) {
    GgufBytes bytes = model("qwen3moe");
    bytes.tensors.push_back(nvfp4_experts());
    scale.name = "blk.0.ffn_up_exps.scale";
    bytes.tensors.push_back(std::move(scale));
    return source_fault(bytes);
  };
  EXPECT_NE(fault_with({"", {1}, 0, raw(1.0f)}).find("F32 [1], want F32 [2]"), std::string::npos);
  EXPECT_NE(fault_with({"", {2}, 1, "abcd"}).find("F16 [2], want F32 [2]"), std::string::npos);
  EXPECT_NE(fault_with({"", {2}, 0, raw(1.0f) + raw(NAN)}).find("element 1 is nan"),
            std::string::npos);
  // One next to another type is a tensor that nobody knows.
  GgufBytes bytes = model("qwen3moe");
  bytes.tensors.push_back({"blk.0.attn_q.scale", {1}, 0, raw(1.0f)});
  EXPECT_NE(GgufSource(write(bytes)).find("blk.0.attn_q.scale"), nullptr);
}

TEST_F(GgufSourceTest, HalvesOfKvBWithScalesOfNvfp4AreRefused) {
  GgufBytes bytes = model("deepseek2");
  bytes.tensors.push_back({"blk.0.attn_k_b.weight", {64, 2, 1}, 40, std::string(72, '\x11')});
  bytes.tensors.push_back({"blk.0.attn_v_b.weight", {2, 3, 1}, 0, std::string(24, '\0')});
  bytes.tensors.push_back({"blk.0.attn_k_b.scale", {1}, 0, raw(1.0f)});
  EXPECT_NE(source_fault(bytes).find("halves of kv_b_proj with scales of NVFP4"),
            std::string::npos);
}

TEST_F(GgufSourceTest, ModelsThatAreNotSupportedAreNamed) {
  const auto with = [](const std::string& arch, const std::string& key) {
    GgufBytes bytes = model(arch);
    bytes.keys.push_back(key);
    return bytes;
  };
  const auto expect = [&](const GgufBytes& bytes, const std::string& words) {
    const std::string got = config_fault(bytes);
    EXPECT_NE(got.find(words), std::string::npos) << "got '" << got << "', want '" << words << "'";
  };
  expect(model("mamba"), "got 'mamba', known are llama, qwen2, qwen3, qwen3moe, qwen35");
  expect(with("llama", testing::key_u32("llama.expert_count", 8)), "Mixtral is not supported");
  expect(with("llama", testing::key_f32("llama.final_logit_softcapping", 30)), "is not supported");
  expect(with("llama", testing::key_f32("llama.attention.scale", 0.5f)), "is not supported");
  expect(with("llama", testing::key_u32("llama.attention.sliding_window", 512)), "a window");
  expect(with("llama", testing::key_u32("llama.rope.dimension_count", 2)), "only whole ones");
  expect(with("llama", testing::key_text("llama.rope.scaling.type", "longrope")),
         "got 'longrope', supported are none, linear and yarn");
  expect(with("llama", testing::key_f32("llama.rope.freq_base", std::nanf(""))),
         "key 'llama.rope.freq_base': got nan, want a finite number");
  expect(with("llama", testing::key_f32("llama.rope.freq_base", INFINITY)),
         "key 'llama.rope.freq_base': got inf, want a finite number");
  expect(with("llama", testing::key_list("llama.attention.key_length", 4, 2,
                                         raw<uint32_t>(4) + raw<uint32_t>(8))),
         "differs by layer");
  expect(with("llama", testing::key_list("llama.attention.key_length", 4, 0, "")),
         "got an empty list, want a whole number");
  EXPECT_EQ(config_fault(model("llama")), "");
}

TEST_F(GgufSourceTest, UnknownKeysOfTheArchitectureArePassedOn) {
  GgufBytes bytes = model("llama");
  bytes.keys.push_back(testing::key_u32("llama.new.setting", 3));
  bytes.keys.push_back(testing::key_u32("general.other", 3));
  const std::string config = gguf_texts(write(bytes)).read("config.json", 1 << 20);
  EXPECT_NE(config.find("\"llama.new.setting\""), std::string::npos);
  EXPECT_EQ(config.find("general.other"), std::string::npos);
}

TEST_F(GgufSourceTest, ExpertsAreNotCountless) {
  GgufBytes bytes = model("llama");
  bytes.tensors.push_back(counting("blk.0.ffn_up_exps.weight", {1, 1, (1 << 18) + 1}));
  EXPECT_NE(source_fault(bytes).find("more than 262144 tensors"), std::string::npos);
}

TEST_F(GgufSourceTest, SizesThatDoNotFitAreFaults) {
  GgufBytes bytes = model("llama");
  bytes.tensors.push_back(counting("blk.0.attn_q.weight", {1, 7}));
  EXPECT_NE(source_fault(bytes).find("no 2 heads of even width"), std::string::npos);
  bytes = model("deepseek2");
  bytes.tensors.push_back(counting("blk.0.attn_k_b.weight", {2, 3, 2}));
  EXPECT_NE(source_fault(bytes).find("'blk.0.attn_v_b.weight' is missing"), std::string::npos);
  bytes.tensors.push_back(counting("blk.0.attn_v_b.weight", {4, 2, 2}));
  EXPECT_NE(source_fault(bytes).find("does not fit attn_v_b"), std::string::npos);
  bytes = model("qwen35");
  for (const auto& [key, value] : {std::pair{"group_count", 2u},
                                   {"time_step_rank", 4u},
                                   {"inner_size", 16777216u},
                                   {"state_size", 4u}}) {
    bytes.keys.push_back(testing::key_u32(std::string("qwen35.ssm.") + key, value));
  }
  bytes.tensors.push_back(counting("blk.0.attn_gate.weight", {2, 8}));
  EXPECT_NE(source_fault(bytes).find("the keys say 16777216, not 8"), std::string::npos);
}

// No byte of a file, whatever it becomes, does more harm than an error.
TEST_F(GgufSourceTest, AnyWrongByteIsHarmless) {
  int num_opened = 0;
  for (const std::string& path : files_in("/tests/fuzz/corpus/gguf")) {
    const std::string bytes = read_file(path, 1 << 20);
    const size_t end = std::min<size_t>(bytes.size(), 1600);
    for (size_t at = 8; at < end; ++at) {
      std::string changed = bytes;
      changed[at] = static_cast<char>(at % 3 == 0 ? 0xff : at % 3 == 1 ? 0x00 : 0x7f);
      testing::write_bytes(dir_.file("a.gguf"), changed);
      static_cast<void>(testing::error_of([&] {
        const GgufSource source(dir_.file("a.gguf"));
        ++num_opened;
        for (const CheckpointTensor& tensor : source.tensors()) {
          static_cast<void>(testing::error_of([&] {
            if (tensor.info.readable) static_cast<void>(all_of(source, tensor));
            const NarrowForm form = source.narrow_form(tensor);
            if (form == NarrowForm::kNone) return;
            const int64_t cols = tensor.info.dims.back();
            const int64_t rows = tensor.info.shape.num_elements() / cols;
            std::vector<std::byte> kept(
                static_cast<size_t>(rows * narrow_layout(form).row_bytes(cols)));
            source.read_quantised_rows(tensor, 0, rows, kept.data());
          }));
        }
      }));
      for (const char* name : {"config.json", "tokenizer.json", "tokenizer_config.json"}) {
        static_cast<void>(testing::error_of(
            [&] { static_cast<void>(gguf_texts(dir_.file("a.gguf")).find(name, 1 << 24)); }));
      }
    }
  }
  EXPECT_GT(num_opened, 100);
}

}  // namespace
}  // namespace strata
