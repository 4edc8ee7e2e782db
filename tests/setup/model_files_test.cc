// SPDX-License-Identifier: Apache-2.0
#include "setup/model_files.h"

#include <gtest/gtest.h>

#include "base/files.h"
#include "tests/base/temp_dir.h"

namespace strata::apps {
namespace {

using strata::testing::TempDir;

// Weights of 8 bits are saved in full types, so their copy must not claim a quantization.
TEST(ModelFiles, ACopyDoesNotClaimToBeQuantized) {
  const TempDir from, to;
  const std::string scaling = R"({"type":"yarn","factor":40})";
  write_file_atomic(from.file("config.json"),
                    R"({"hidden_size": 160, "quantization_config": {"quant_method": "fp8",)"
                    R"( "weight_block_size": [128, 128]}, "rope_scaling": )" +
                        scaling + "}");
  write_file_atomic(from.file("tokenizer_config.json"), R"({"quantization_config": "a text"})");
  copy_model_files_as_unquantized(from.path(), to.path());
  EXPECT_EQ(read_file(to.file("config.json"), 1 << 20),
            "{\n  \"hidden_size\": 160,\n  \"rope_scaling\": " + scaling + "\n}\n");
  EXPECT_EQ(read_file(to.file("tokenizer_config.json"), 1 << 20),
            R"({"quantization_config": "a text"})");
  EXPECT_FALSE(file_exists(to.file("tokenizer.json")));
}

TEST(ModelFiles, AConfigWithoutQuantizationIsCopiedByteByByte) {
  const std::string text = "{ \"hidden_size\" : 160 }\n";
  EXPECT_EQ(without_quantization(text, "config.json"), text);
}

}  // namespace
}  // namespace strata::apps
