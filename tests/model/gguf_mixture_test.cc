// SPDX-License-Identifier: Apache-2.0
// Types of tensors by what a GGUF file mostly is, as llama-quantize chooses them (llama.cpp's
// llama-quant.cpp; tools/golden/make_k_quants.py --compare holds whole files against it).
#include "model/export/gguf_mixture.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

namespace strata::model {
namespace {

std::string config_text(int layers) {
  return R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 64,
    "hidden_size": 512, "intermediate_size": 1024, "num_attention_heads": 8,
    "num_key_value_heads": 4, "num_hidden_layers": )" +
         std::to_string(layers) + "}";
}

constexpr const char* kParts[] = {"attn_q",   "attn_k", "attn_v",   "attn_output",
                                  "ffn_gate", "ffn_up", "ffn_down", "attn_norm"};

std::string name_of(int64_t layer, const std::string& part) {
  return "blk." + std::to_string(layer) + "." + part + ".weight";
}

class Mixture {
 public:
  explicit Mixture(const std::string& type, int layers = 24, bool tied = true)
      : mixture_(type, parse_config(config_text(layers), "config.json", true).config,
                 names(layers, tied)) {}

  [[nodiscard]] std::string type_of(const std::string& name, int64_t columns = 512) const {
    const std::vector<int64_t> dims = name.find("norm") == std::string::npos
                                          ? std::vector<int64_t>{64, columns}
                                          : std::vector<int64_t>{columns};
    return std::string(mixture_.encoding_for(name, dims).type->name);
  }
  // The layers in which a part has this type.
  [[nodiscard]] std::vector<int> layers_with(const std::string& part, const std::string& type,
                                             int layers = 24) const {
    std::vector<int> out;
    for (int i = 0; i < layers; ++i) {
      if (type_of(name_of(i, part)) == type) out.push_back(i);
    }
    return out;
  }

 private:
  static std::vector<std::string> names(int layers, bool tied) {
    std::vector<std::string> out = {"token_embd.weight"};
    if (!tied) out.emplace_back("output.weight");
    // As strings sort, not as numbers do.
    for (int i = 0; i < layers; ++i) {
      for (const char* part : kParts) out.push_back(name_of(i, part));
    }
    std::ranges::sort(out);
    return out;
  }

  GgufMixture mixture_;
};

TEST(GgufMixture, ValuesAndDownProjectionsHaveMoreBitsInSomeLayers) {
  const std::vector<int> more = {0, 1, 2, 5, 8, 11, 14, 17, 20, 21, 22, 23};
  for (const auto& [type, base] : {std::pair{"q4_k_m", "Q4_K"}, {"q5_k_m", "Q5_K"}}) {
    const Mixture mixture(type);
    for (const char* part : {"attn_v", "ffn_down"}) {
      EXPECT_EQ(mixture.layers_with(part, "Q6_K"), more) << type << part;
      EXPECT_EQ(mixture.layers_with(part, base).size(), 24 - more.size()) << type << part;
    }
    for (const char* part : {"attn_q", "attn_k", "attn_output", "ffn_gate", "ffn_up"})
      EXPECT_EQ(mixture.layers_with(part, base).size(), 24u) << type << part;
    EXPECT_EQ(mixture.layers_with("attn_norm", "F32").size(), 24u);
  }
  const Mixture six("q6_k");
  for (const char* part : {"attn_q", "attn_v", "ffn_down"})
    EXPECT_EQ(six.layers_with(part, "Q6_K").size(), 24u) << part;
}

TEST(GgufMixture, TheHeadHasSixBitsAndSoHasATiedEmbedding) {
  EXPECT_EQ(Mixture("q4_k_m").type_of("token_embd.weight"), "Q6_K");
  EXPECT_EQ(Mixture("q4_k_m").type_of("token_embd.weight", 576), "Q8_0");
  EXPECT_EQ(Mixture("q4_k_m", 24, false).type_of("token_embd.weight"), "Q4_K");
  EXPECT_EQ(Mixture("q4_k_m", 24, false).type_of("output.weight"), "Q6_K");
  EXPECT_EQ(Mixture("q4_0", 24, false).type_of("output.weight"), "Q8_0");
}

TEST(GgufMixture, OtherTypesStandInForRowsThatAreNoWholeBlocks) {
  const auto in_576 = [](const std::string& type, const std::string& part) {
    return Mixture(type).type_of(name_of(3, part), 576);
  };
  EXPECT_EQ(in_576("q4_k_m", "attn_q"), "Q5_0");
  EXPECT_EQ(in_576("q5_k_m", "attn_q"), "Q5_1");
  EXPECT_EQ(in_576("q6_k", "attn_q"), "Q8_0");
  EXPECT_EQ(Mixture("q4_k_m").type_of(name_of(0, "attn_v"), 576), "Q8_0");
  EXPECT_EQ(Mixture("q4_k_m").type_of(name_of(0, "attn_q"), 48), "F16");
}

TEST(GgufMixture, FilesSayWhatTheyMostlyAre) {
  EXPECT_EQ(gguf_file_type("q4_k_m"), 15u);
  EXPECT_EQ(gguf_file_type("q5_k_m"), 17u);
  EXPECT_EQ(gguf_file_type("q6_k"), 18u);
  EXPECT_EQ(gguf_file_type("q8_0"), 7u);
  // 80 layers of Llama, with fewer values than queries.
  const Mixture large("q4_k_m", 80);
  EXPECT_EQ(large.layers_with("attn_v", "Q4_K", 80).size(), 0u);
  EXPECT_EQ(large.type_of(name_of(13, "attn_v")), "Q5_K");
  EXPECT_EQ(large.type_of(name_of(13, "attn_q")), "Q4_K");
}

}  // namespace
}  // namespace strata::model
