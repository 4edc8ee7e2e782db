// SPDX-License-Identifier: Apache-2.0
// Stacked checkpoints: names, slices, and every way in which a file may be wrong.
#include "checkpoint/stacks.h"

#include <gtest/gtest.h>

#include <fstream>

#include "base/error.h"
#include "checkpoint/checkpoint_dir.h"
#include "tests/checkpoint/safetensors_bytes.h"

namespace strata {
namespace {

TEST(Stacks, NamesHaveTheStackWhereTheLayersNumberStood) {
  EXPECT_EQ(stacked_name("model.layers.12.self_attn.q_proj.weight", 12, 0, -1),
            "model.layers.stack0.self_attn.q_proj.weight");
  EXPECT_EQ(stacked_name("model.layers.3.mlp.experts.7.up_proj.weight", 3, 1, 7),
            "model.layers.stack1.mlp.experts.up_proj.weight");
  EXPECT_EQ(stacked_name("layers.3.attn.wq.weight", 3, 1, -1), "layers.stack1.attn.wq.weight");
  EXPECT_FALSE(stacked_name("model.layers.3.mlp.up_proj.weight", 4, 1, -1));
  EXPECT_FALSE(stacked_name("model.sublayers.3.mlp.up_proj.weight", 3, 1, -1));
  EXPECT_TRUE(is_stack_of_experts("model.layers.stack1.mlp.experts.up_proj.weight"));
  EXPECT_FALSE(is_stack_of_experts("model.layers.stack1.mlp.experts.gate_up_proj"));
  EXPECT_FALSE(is_stack_of_experts("model.layers.stack1.mlp.shared_experts.up_proj.weight"));
  EXPECT_FALSE(is_stack_of_experts("a.experts.layers.stack1.up_proj.weight"));
}

// A directory with one file of the values 0, 1, 2, ... in f32.
class StackedDir {
 public:
  StackedDir(const std::string& stacks, const std::vector<std::pair<std::string, std::string>>& of,
             const std::vector<int64_t>& counts) {
    std::string header = R"({"__metadata__":{"format":"pt","strata.stacks":")" + stacks + "\"}";
    std::vector<float> values;
    for (size_t i = 0; i < of.size(); ++i) {
      const auto begin = static_cast<int64_t>(values.size() * sizeof(float));
      for (int64_t v = 0; v < counts[i]; ++v) values.push_back(static_cast<float>(values.size()));
      const auto end = static_cast<int64_t>(values.size() * sizeof(float));
      header += "," + testing::entry(of[i].first, "F32", of[i].second, begin, end);
    }
    const std::string data(reinterpret_cast<const char*>(values.data()),
                           values.size() * sizeof(float));
    std::ofstream(dir_.file("model.safetensors"), std::ios::binary)
        << testing::safetensors_bytes(header + "}", data);
  }
  [[nodiscard]] CheckpointDir open() const { return CheckpointDir(dir_.file("")); }
  [[nodiscard]] std::string fault() const {
    try {
      static_cast<void>(open());
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  }

 private:
  testing::TempDir dir_;
};

TEST(Stacks, AreSeenAsTheirLayers) {
  const StackedDir dir("[[0,2],[1]]",
                       {{"model.layers.stack0.mlp.up_proj.weight", "[2,3,2]"},
                        {"model.layers.stack1.mlp.experts.up_proj.weight", "[1,2,2,2]"},
                        {"model.norm.weight", "[2]"}},
                       {12, 8, 2});
  const CheckpointDir source = dir.open();
  ASSERT_EQ(source.tensors().size(), 5U);
  const auto values = [&](const char* name, std::vector<int64_t> dims) {
    const CheckpointTensor* tensor = source.find(name);
    EXPECT_NE(tensor, nullptr) << name;
    if (tensor == nullptr) return std::vector<float>();
    EXPECT_EQ(tensor->info.dims, dims) << name;
    std::vector<float> out(static_cast<size_t>(tensor->info.shape.num_elements()));
    source.read_f32(*tensor, 0, std::ssize(out), out.data());
    return out;
  };
  EXPECT_EQ(values("model.layers.2.mlp.up_proj.weight", {3, 2}),
            (std::vector<float>{6, 7, 8, 9, 10, 11}));
  EXPECT_EQ(values("model.layers.1.mlp.experts.1.up_proj.weight", {2, 2}),
            (std::vector<float>{16, 17, 18, 19}));
  EXPECT_EQ(values("model.norm.weight", {2}), (std::vector<float>{20, 21}));
}

TEST(Stacks, ThatDoNotFitAreRefused) {
  const auto fault = [](const char* stacks, const char* name, const char* shape, int64_t count) {
    return StackedDir(stacks, {{name, shape}}, {count}).fault();
  };
  const char* up = "model.layers.stack0.up.weight";
  EXPECT_EQ(fault("[[0,1]]", up, "[2,2]", 4), "");
  EXPECT_EQ(fault("[[0,1]]", "a.experts.layers.stack0.up.weight", "[2,2]", 4), "");
  EXPECT_NE(fault("[[0,1]]", up, "[3,2]", 6).find("lists 2 layers"), std::string::npos);
  EXPECT_NE(fault("[[0,1]]", "model.layers.stack1.up.weight", "[2]", 2).find("lists 1 stack"),
            std::string::npos);
  EXPECT_NE(fault("[[0,0]]", up, "[2]", 2).find("each once"), std::string::npos);
  EXPECT_NE(fault("[[-1]]", up, "[1]", 1).find("each once"), std::string::npos);
  EXPECT_NE(fault("[[]]", up, "[1]", 1).find("without layers"), std::string::npos);
  EXPECT_NE(fault("{}", up, "[1]", 1), "");
  EXPECT_NE(fault("[[0]]", "layers.stack0.experts.up.weight", "[1,0,4]", 0).find("experts"),
            std::string::npos);
  EXPECT_NE(fault("[[0]]", "layers.stack0.experts.up.weight", "[1,1000000,0]", 0), "");
  // A name takes memory although its tensor has no byte.
  std::string many = "[[0";
  for (int layer = 1; layer < 8; ++layer) many += "," + std::to_string(layer);
  many += "]]";
  EXPECT_NE(fault(many.c_str(), "layers.stack0.experts.up.weight", "[8,65536,0]", 0)
                .find("more than 131072 parts"),
            std::string::npos);
  std::vector<std::pair<std::string, std::string>> tensors;
  for (int i = 0; i < 3; ++i) {
    tensors.emplace_back("layers.stack0.experts.w" + std::to_string(i) + ".weight", "[2,65536,0]");
  }
  EXPECT_NE(StackedDir("[[0,1]]", tensors, {0, 0, 0})
                .fault()
                .find("its stacks have more than 262144 tensors"),
            std::string::npos);
  EXPECT_NE(StackedDir("[[0]]", {{up, "[1]"}, {"model.layers.0.up.weight", "[1]"}}, {1, 1})
                .fault()
                .find("there twice"),
            std::string::npos);
}

}  // namespace
}  // namespace strata
