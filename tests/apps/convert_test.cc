// SPDX-License-Identifier: Apache-2.0
// strata convert --to gguf, the program itself: K-quants, how to sample, numbers in 32 bits.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/json.hpp>

#include "checkpoint/gguf/gguf_file.h"
#include "tests/apps/program.h"

namespace strata::apps {
namespace {

using ::testing::HasSubstr;

const std::string kBundled = std::string(STRATA_SOURCE_DIR) + "/models/tiny-qwen3";

class ConvertTest : public ::testing::Test {
 protected:
  // The bundled model with other small files: name and content; an empty one is left out.
  std::string model_with(const std::map<std::string, std::string>& files) {
    const std::filesystem::path dir = dir_.file("model");
    std::filesystem::remove_all(dir);
    std::filesystem::create_directories(dir);
    for (const auto& file : std::filesystem::directory_iterator(kBundled)) {
      const std::string name = file.path().filename();
      if (!files.contains(name)) std::filesystem::create_symlink(file.path(), dir / name);
    }
    for (const auto& [name, content] : files) {
      if (!content.empty()) std::ofstream(dir / name) << content;
    }
    return dir.string();
  }
  Ran convert(const std::string& model, const Words& more = {}) {
    std::filesystem::remove(dir_.file("a.gguf"));
    Words args = {"convert", "--model", model, "--to", "gguf", "--out", out(), "--threads", "2"};
    args.insert(args.end(), more.begin(), more.end());
    return run_program(args);
  }
  [[nodiscard]] std::string out() const { return dir_.file("a.gguf"); }
  const TempDir dir_;
};

// The model's rows are 192 wide, which blocks of 256 do not divide; those of its down projections
// are.
TEST_F(ConvertTest, KQuantsAreWrittenAndAnswer) {
  for (const auto& [type, number] : {std::pair{"q4_k_m", 15}, {"q5_k_m", 17}, {"q6_k", 18}}) {
    const Ran ran = convert(kBundled, {"--type", type});
    ASSERT_EQ(ran.code, 0) << ran.err;
    const GgufFile file(out());
    EXPECT_EQ(file.keys().integer("general.file_type"), number);
    const Ran answer =
        run_program({"chat", "--model", out(), "--prompt", "What is 7 plus 5?", "--threads", "2"});
    EXPECT_EQ(answer.code, 0) << answer.err;
    EXPECT_EQ(answer.out, "7 plus 5 is 12.\n") << type;
    EXPECT_THAT(answer.err, HasSubstr("do_sample false (greedy)"));
  }
}

// As transformers saved SmolLM2's: more digits than 32 bits have.
TEST_F(ConvertTest, NumbersAreComparedAsTheFileHasThem) {
  boost::json::object config =
      boost::json::parse(read_bytes(kBundled + "/config.json")).as_object();
  config["rms_norm_eps"] = 9.999999747378752e-06;
  const Ran ran = convert(model_with({{"config.json", boost::json::serialize(config)}}));
  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_EQ(GgufFile(out()).keys().number("qwen3.attention.layer_norm_rms_epsilon"), 1e-5);
}

}  // namespace
}  // namespace strata::apps
