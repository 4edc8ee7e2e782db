// SPDX-License-Identifier: Apache-2.0
// What a model's files may say of weights in few bits: methods and groups that are read, and the
// names of those that are not.
#include "model/families/quantization.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "tests/base/temp_dir.h"
#include "tests/checkpoint/safetensors_bytes.h"
#include "tests/model/reader_case.h"

namespace strata::model {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string fault_of(const std::string& quantization) {
  return message_of(
      config_text("LlamaForCausalLM", "llama", R"("quantization_config": )" + quantization));
}

std::string group(const std::string& format, const std::string& weights) {
  return R"({"targets": ["re:.*proj"], "format": )" + format + R"(, "weights": )" + weights + "}";
}

constexpr const char* kFp8 =
    R"({"num_bits": 8, "type": "float", "symmetric": true, "strategy": "channel",
        "group_size": null, "block_structure": null})";
constexpr const char* kBlocks =
    R"({"num_bits": 8, "type": "float", "strategy": "block", "block_structure": [128, 128]})";
constexpr const char* kNvfp4 =
    R"({"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16})";

std::string mixed(const std::string& first, const std::string& second) {
  return R"({"quant_method": "compressed-tensors", "format": "mixed-precision", "ignore":
             ["lm_head", "re:.*router"], "kv_cache_scheme": {"num_bits": 8, "type": "float"},
             "transform_config": {}, "sparsity_config": {}, "config_groups": {"group_0": )" +
         first + R"(, "group_1": )" + second + "}}";
}

TEST(Quantization, GroupsOfOneCheckpointMayDiffer) {
  const std::string fp8 = group(R"("float-quantized")", kFp8);
  const std::string nvfp4 = group(R"("nvfp4-pack-quantized")", kNvfp4);
  EXPECT_EQ(fault_of(mixed(fp8, nvfp4)), "");
  EXPECT_EQ(fault_of(mixed(group("null", kFp8), group("null", kBlocks))), "");
  EXPECT_EQ(fault_of(mixed(group(R"("naive-quantized")", kBlocks), group("null", "null"))), "");
  EXPECT_EQ(fault_of(R"({"quant_method": "compressed-tensors", "format": "float-quantized"})"), "");
}

TEST(Quantization, AGroupThatIsNotReadIsNamed) {
  const std::string fp8 = group(R"("float-quantized")", kFp8);
  for (
      const auto& [format, weights] : std::initializer_list<std::pair<const char*, const char*>>{
          {R"("pack-quantized")",
           R"({"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32})"},
          {R"("int-quantized")", R"({"num_bits": 8, "type": "int", "strategy": "channel"})"},
          {R"("mxfp4-pack-quantized")",
           R"({"num_bits": 4, "type": "float", "strategy": "group", "group_size": 32})"},
          {R"("nvfp4-pack-quantized")",
           R"({"num_bits": 4, "type": "float", "strategy": "group", "group_size": 32})"},
          {R"("float-quantized")",
           R"({"num_bits": 8, "type": "float", "strategy": "group", "group_size": 128})"},
          {R"("float-quantized")",
           R"({"num_bits": 8, "type": "float", "strategy": "block", "block_structure": [64, 64]})"},
          {R"("float-quantized")", R"({"num_bits": 8, "type": "float", "symmetric": false})"},
          {"null", R"({"num_bits": 8, "type": "int", "strategy": "channel"})"}}) {
    EXPECT_THAT(fault_of(mixed(fp8, group(format, weights))),
                AllOf(HasSubstr("config_groups: 'group_1' is not supported: format"),
                      HasSubstr("supported are FP8")))
        << format << weights;
  }
  EXPECT_THAT(fault_of(R"({"quant_method": "compressed-tensors", "format": "float-quantized",
                           "transform_config": {"config_groups": {"u": {}}}})"),
              HasSubstr("transform_config is not supported"));
  EXPECT_THAT(fault_of(R"({"quant_method": "compressed-tensors", "format": "float-quantized",
                           "sparsity_config": {"format": "sparse-24-bitmask"}})"),
              HasSubstr("format 'sparse-24-bitmask' is not supported"));
  EXPECT_THAT(fault_of(mixed("3", fp8)), HasSubstr("group_0"));
}

TEST(Quantization, ModelOptsAlgorithmsAreNamed) {
  const auto config = [](const char* algorithm, const char* layers) {
    return std::string(R"({"quant_method": "modelopt", "ignore": ["lm_head", "*router*"],)") +
           R"("quant_algo": )" + algorithm + R"(, "quantized_layers": )" + layers + "}";
  };
  constexpr const char* kMixed =
      R"({"a.q_proj": {"quant_algo": "FP8"}, "a.up": {"quant_algo": "NVFP4", "group_size": 16}})";
  EXPECT_EQ(fault_of(config(R"("MIXED_PRECISION")", kMixed)), "");
  EXPECT_EQ(fault_of(config(R"("NVFP4")", "null")), "");
  EXPECT_EQ(fault_of(config(R"("FP8")", "null")), "");
  EXPECT_THAT(fault_of(config(R"("W4A8_AWQ")", "null")),
              AllOf(HasSubstr("quant_method 'modelopt' is not supported"), HasSubstr("W4A8_AWQ")));
  EXPECT_THAT(
      fault_of(config(R"("MIXED_PRECISION")", R"({"b.down": {"quant_algo": "W4A16_AWQ"}})")),
      HasSubstr("quantized_layers: 'b.down': quant_algo 'W4A16_AWQ' is not supported"));
  EXPECT_THAT(
      fault_of(R"({"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "config_groups":
                   {"g": {"weights": {"num_bits": 8, "type": "int"}}}})"),
      HasSubstr("config_groups: 'g' is not supported"));
}

// Older exports have their types in a file next to config.json alone.
TEST(Quantization, ModelOptsOwnFileIsReadToo) {
  const testing::TempDir dir;
  testing::write_bytes(dir.file("config.json"), config_text("LlamaForCausalLM", "llama", ""));
  const auto fault_with = [&](const std::string& text) {
    testing::write_bytes(dir.file("hf_quant_config.json"), text);
    return testing::error_of([&] { static_cast<void>(load_config(dir.path(), true)); });
  };
  EXPECT_EQ(fault_with(R"({"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "NVFP4",
                           "kv_cache_quant_algo": "FP8", "exclude_modules": ["lm_head", "*.gate"]}})"),
            "");
  EXPECT_EQ(fault_with(R"({"quantization": {"quant_algo": null}})"), "");
  EXPECT_THAT(fault_with(R"({"quantization": {"quant_algo": "INT8_SQ"}})"),
              AllOf(HasSubstr("hf_quant_config.json"), HasSubstr("quant_algo 'INT8_SQ'")));
  EXPECT_THAT(fault_with(R"({"quantization": {"quant_algo": "MIXED_PRECISION",
                             "quantized_layers": {"x": {"quant_algo": "NVFP4_AWQ"}}}})"),
              HasSubstr("'x': quant_algo 'NVFP4_AWQ' is not supported"));
  EXPECT_THAT(fault_with("{"), HasSubstr("hf_quant_config.json"));
}

}  // namespace
}  // namespace strata::model
