// SPDX-License-Identifier: Apache-2.0
// strata train and plan with --load-in-4bit: a base that is quantised as it is loaded is the base
// that strata convert --type nf4 writes, which equals bitsandbytes' (tests/golden/export_test.cc).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/json.hpp>

#include "checkpoint/peft.h"
#include "model/adapter/base_numbers.h"
#include "tests/apps/program.h"

namespace strata::apps {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class LoadIn4Bit : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string source = STRATA_SOURCE_DIR;
    std::filesystem::create_symlink(source + "/models/tiny-qwen3", dir_.file("tiny"));
    std::filesystem::create_symlink(source + "/tests/golden/qwen3_moe/model", dir_.file("moe"));
    std::filesystem::create_symlink(source + "/examples/answers.jsonl", dir_.file("data.jsonl"));
    around_.folder = dir_.file(".");
  }
  [[nodiscard]] Ran run(const Words& words) const { return run_program(words, "", around_); }
  [[nodiscard]] Ran train(const std::string& model, const std::string& out,
                          const Words& more = {}) const {
    Words words = {"train",           model, "--data", "data.jsonl", "--out",     out,
                   "--steps",         "4",   "--rank", "4",          "--threads", "2",
                   "--eval-fraction", "0"};
    words.insert(words.end(), more.begin(), more.end());
    return run(words);
  }
  [[nodiscard]] std::string file(const std::string& name) const {
    return read_bytes(dir_.file(name));
  }
  [[nodiscard]] boost::json::object plan(const Words& more) const {
    Words words = {"plan", "train", "--tokens", "2x64", "--threads", "2", "--json"};
    words.insert(words.end(), more.begin(), more.end());
    const Ran ran = run(words);
    EXPECT_EQ(ran.code, 0) << ran.err;
    return boost::json::parse(ran.out).as_object();
  }

  const TempDir dir_;
  Surroundings around_;
};

TEST_F(LoadIn4Bit, TrainsOnTheBaseThatConvertWrites) {
  ASSERT_EQ(run({"convert", "tiny", "--type", "nf4", "--out", "nf4"}).code, 0);
  ASSERT_EQ(train("nf4", "converted").code, 0);
  const Ran loaded = train("tiny", "loaded", {"--load-in-4bit", "--verbose"});
  ASSERT_EQ(loaded.code, 0) << loaded.err;
  EXPECT_THAT(loaded.err, HasSubstr("28 nf4: "));
  EXPECT_TRUE(file("converted/adapter_model.safetensors") ==
              file("loaded/adapter_model.safetensors"));
  ASSERT_EQ(train("tiny", "full").code, 0);
  EXPECT_FALSE(file("full/adapter_model.safetensors") == file("loaded/adapter_model.safetensors"));
  // It remembers what it was trained over.
  const auto numbers = model::saved_base_fingerprint(PeftAdapter(dir_.file("loaded")));
  ASSERT_TRUE(numbers.has_value());
  EXPECT_THAT(numbers->types, HasSubstr("28 nf4"));
  const Ran other = run({"chat", "loaded", "--prompt", "Hi", "--max-tokens", "1"});
  EXPECT_THAT(other.err, HasSubstr("it was trained over a base with matrices in "));
  EXPECT_THAT(other.err, HasSubstr("; strata convert --type nf4 writes a base with its own"));
  // The card says so too, to users of Strata and of transformers.
  const std::string card = file("loaded/README.md");
  EXPECT_THAT(card, HasSubstr("strata convert $BASE --type nf4 --out base-nf4\n"
                              "strata chat --model base-nf4 --adapter .\n"));
  EXPECT_THAT(card, HasSubstr("nf4 = BitsAndBytesConfig(load_in_4bit=True, "
                              "bnb_4bit_quant_type=\"nf4\")\n"));
  EXPECT_THAT(card, HasSubstr("dtype=\"auto\", quantization_config=nf4)"));
  EXPECT_THAT(file("full/README.md"), Not(HasSubstr("nf4")));
}

TEST_F(LoadIn4Bit, IsAnOptionThatARunGoesOnWith) {
  ASSERT_EQ(train("tiny", "run", {"--load-in-4bit"}).code, 0);
  EXPECT_THAT(file("run/recipe.toml"), HasSubstr("load-in-4bit = true\n"));
  EXPECT_EQ(run({"train", "--resume", "--out", "run"}).code, 0);
  const Ran without = run({"train", "--resume", "--out", "run", "--load-in-4bit=off"});
  EXPECT_EQ(without.code, 2);
  EXPECT_THAT(without.err, HasSubstr("load-in-4bit: was \"on\", now \"off\""));
}

// Of files, and of a config alone.
TEST_F(LoadIn4Bit, PlansCountItsBytes) {
  ASSERT_EQ(run({"convert", "tiny", "--type", "nf4", "--out", "nf4"}).code, 0);
  std::filesystem::create_directory(dir_.file("config"));
  std::filesystem::copy_file(dir_.file("tiny/config.json"), dir_.file("config/config.json"));
  const boost::json::value converted = plan({"nf4"}).at("bytes");
  EXPECT_EQ(plan({"tiny", "--load-in-4bit"}).at("bytes"), converted);
  EXPECT_EQ(plan({"config/config.json", "--load-in-4bit"}).at("bytes"), converted);
  EXPECT_NE(plan({"tiny"}).at("bytes"), converted);
}

TEST_F(LoadIn4Bit, RefusesByNameWhatItIsNotFor) {
  ASSERT_EQ(run({"convert", "tiny", "--type", "nf4", "--out", "nf4"}).code, 0);
  const auto refusal = [&](const std::string& model, const Words& more) {
    Words words = {"--load-in-4bit"};
    words.insert(words.end(), more.begin(), more.end());
    const Ran ran = train(model, "none", words);
    EXPECT_EQ(ran.code, 2) << ran.err;
    EXPECT_FALSE(std::filesystem::exists(dir_.file("none")));
    return ran.err;
  };
  EXPECT_THAT(refusal("tiny", {"--method", "full"}), HasSubstr("--load-in-4bit and --method full"));
  EXPECT_THAT(refusal("tiny", {"--dtype", "f32"}), HasSubstr("--load-in-4bit and --dtype f32"));
  EXPECT_THAT(refusal("tiny", {"--weights", "bf16"}),
              HasSubstr("--load-in-4bit and --weights bf16"));
  EXPECT_THAT(refusal("nf4", {}),
              AllOf(HasSubstr("is in 4 to 8 bits already"), HasSubstr("leave out the option")));
  EXPECT_EQ(run({"plan", "moe", "--load-in-4bit"}).code, 2);
  EXPECT_THAT(run({"plan", "moe", "--load-in-4bit"}).err,
              HasSubstr("experts are no linear layers"));
  EXPECT_THAT(run({"plan", "serve", "tiny", "--load-in-4bit"}).err, HasSubstr("load-in-4bit"));
}

}  // namespace
}  // namespace strata::apps
