// SPDX-License-Identifier: Apache-2.0
// Rewards from the command line: tried on data, and trained on with the example's script.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <filesystem>

#include "tests/apps/program.h"

namespace strata::apps {
namespace {

using ::testing::HasSubstr;

const std::string kSource = STRATA_SOURCE_DIR, kModel = kSource + "/models/tiny-qwen3";
const std::string kSums = kSource + "/examples/sums.jsonl";
const std::string kScript = "python3 " + kSource + "/examples/reward.py";

TEST(Rewards, AreTriedOnData) {
  const Ran tried = run_program(
      {"data", kSums, "--model", kModel, "--reward", "regex:{sum}", "--show", "2", "--json"});
  ASSERT_EQ(tried.code, 0) << tried.err;
  const boost::json::value result = boost::json::parse(tried.out);
  EXPECT_EQ(result.at("prompts").to_number<int>(), 700);
  ASSERT_EQ(result.at("rewards").as_array().size(), 2u);
  const boost::json::value& last = result.at("rewards").at(1);
  EXPECT_EQ(last.at("line").at("prompt"), "What is 30 plus 30?");
  EXPECT_EQ(last.at("line").at("completion"), "");
  EXPECT_EQ(last.at("reward").to_number<double>(), 0.0);

  const Ran script = run_program({"data", kSums, "--model", kModel, "--reward", kScript});
  ASSERT_EQ(script.code, 0) << script.err;
  EXPECT_THAT(script.out, HasSubstr("reward 0\n"));
  const Ran broken = run_program({"data", kSums, "--model", kModel, "--reward", "echo hello"});
  EXPECT_EQ(broken.code, 0);
  EXPECT_THAT(broken.out, HasSubstr("no reward: it wrote 'hello'"));
}

TEST(Rewards, AFieldThatIsNotThereIsNamedWithItsLine) {
  for (const char* const command : {"data", "train"}) {
    std::vector<std::string> args = {command, "--data",   kSums,        "--model",
                                     kModel,  "--reward", "exact:total"};
    if (args.front() == "train")
      args.insert(args.end(), {"--loss", "grpo", "--out", "/nonexistent/out", "--dry-run"});
    const Ran ran = run_program(args);
    EXPECT_EQ(ran.code, 2);
    EXPECT_THAT(ran.err, HasSubstr("sums.jsonl:1: --reward: the record has no field 'total'"));
  }
}

TEST(Rewards, TheExampleTrains) {
  const std::string out = ::testing::TempDir() + "strata_rewards";
  std::filesystem::remove_all(out);
  const Ran ran = run_program({"train", "--model", kModel, "--data", kSums, "--loss", "grpo",
                               "--out", out, "--reward", kScript, "--steps", "3", "--max-tokens",
                               "8", "--threads", "1", "--json"});
  ASSERT_EQ(ran.code, 0) << ran.err;
  const boost::json::value result = boost::json::parse(ran.out);
  EXPECT_EQ(result.at("steps").to_number<int>(), 3);
  EXPECT_EQ(result.at("omitted").to_number<int>(), 0);
  EXPECT_TRUE(result.at("eval_loss").is_null());
  EXPECT_TRUE(result.at("eval_reward").is_number());
  EXPECT_THAT(ran.err, HasSubstr("waiting for rewards"));
  EXPECT_TRUE(std::filesystem::exists(out + "/rollouts.jsonl"));
  std::filesystem::remove_all(out);
}

}  // namespace
}  // namespace strata::apps
