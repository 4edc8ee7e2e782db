// SPDX-License-Identifier: Apache-2.0
// Preference pairs from the command line: looked at, trained on with nothing but --loss dpo, and
// evaluated.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <filesystem>
#include <fstream>

#include "tests/apps/program.h"

namespace strata::apps {
namespace {

using ::testing::HasSubstr;

class Preferences : public ::testing::Test {
 protected:
  void SetUp() override {
    std::filesystem::remove_all(root_);
    std::filesystem::create_directories(root_);
  }
  void TearDown() override { std::filesystem::remove_all(root_); }

  const std::string source_ = STRATA_SOURCE_DIR, model_ = source_ + "/models/tiny-qwen3";
  const std::string pairs_ = source_ + "/examples/preferences.jsonl";
  const std::string root_ = ::testing::TempDir() + "strata_preferences";
};

// 15 of the 60 are set aside.
TEST_F(Preferences, SixtyPairsAreLearned) {
  const std::string out = root_ + "/out", held = root_ + "/held.jsonl",
                    kept = root_ + "/kept.jsonl";
  std::ifstream all(pairs_);
  std::ofstream to_train(kept), to_evaluate(held);
  std::string line;
  for (int i = 0; std::getline(all, line); ++i)
    (i % 4 == 0 ? to_evaluate : to_train) << line << "\n";
  to_train.close();
  to_evaluate.close();
  const Ran trained = run_program({"train", "--model", model_, "--data", kept, "--eval", held,
                                   "--loss", "dpo", "--out", out, "--threads", "1", "--json"});
  ASSERT_EQ(trained.code, 0) << trained.err;
  const boost::json::value result = boost::json::parse(trained.out);
  EXPECT_EQ(result.at("eval_accuracy_before").to_number<double>(), 0.5);
  EXPECT_GT(result.at("eval_accuracy").to_number<double>(), 0.8);
  EXPECT_THAT(trained.err, HasSubstr("45 pairs and 15 to evaluate on; dpo sigmoid, beta 0.1"));
  EXPECT_THAT(trained.err, HasSubstr("of pairs (evaluation)"));

  const Ran scored = run_program({"eval", "--model", model_, "--adapter", out, "--data", held,
                                  "--loss", "dpo", "--threads", "1", "--json"});
  ASSERT_EQ(scored.code, 0) << scored.err;
  const boost::json::value part = boost::json::parse(scored.out).at("data").at(0);
  EXPECT_EQ(part.at("pairs").to_number<int>(), 15);
  EXPECT_EQ(part.at("results").at(0).at("accuracy").to_number<double>(), 0.5);
  EXPECT_EQ(part.at("results").at(1).at("accuracy"), result.at("eval_accuracy"));
  EXPECT_EQ(part.at("results").at(1).at("loss"), result.at("eval_loss"));
}

TEST_F(Preferences, DataShowsBothAnswersAndWhatIsLeftOut) {
  const std::string path = root_ + "/pairs.jsonl";
  std::ofstream(path) << R"({"prompt": "a", "chosen": " b", "rejected": " c"}
{"prompt": "a", "chosen": " b", "rejected": " b"}
)";
  const Ran shown = run_program({"data", path, "--model", model_, "--loss", "dpo"});
  ASSERT_EQ(shown.code, 0) << shown.err;
  EXPECT_THAT(shown.out, HasSubstr("pair 1, chosen, 3 tokens, 2 trained (in [[]]):\na[[ b"));
  EXPECT_THAT(shown.out, HasSubstr("pair 1, rejected, 3 tokens, 2 trained (in [[]]):\na[[ c"));
  EXPECT_THAT(shown.err, HasSubstr("1 pair is left out: 1 with equal answers (line 2)"));
  const Ran line = run_program({"data", path, "--model", model_, "--loss", "dpo", "--json"});
  const boost::json::value json = boost::json::parse(line.out);
  EXPECT_EQ(json.at("pairs").to_number<int>(), 1);
  EXPECT_EQ(json.at("left_out_pairs").at("equal_answers").to_number<int>(), 1);
  EXPECT_EQ(json.at("shown").at(0).as_array().size(), 2u);
}

TEST_F(Preferences, EvalRefusesOptionsOfPairsWithoutThem) {
  const Ran ran = run_program({"eval", "--model", model_, "--data", pairs_, "--beta", "0.2"});
  EXPECT_EQ(ran.code, 2);
  EXPECT_THAT(ran.err, HasSubstr("--beta: is of preference pairs; give --loss dpo with it"));
  const Ran kto = run_program({"eval", "--model", model_, "--data", pairs_, "--loss", "kto"});
  EXPECT_THAT(kto.err, HasSubstr("--loss: got 'kto', want cross_entropy, dpo or orpo"));
}

// Evaluated as it was while it trained.
TEST_F(Preferences, OrpoIsTrainedAndEvaluated) {
  const std::string out = root_ + "/orpo", held = root_ + "/held.jsonl";
  std::ofstream(held) << R"({"prompt": "What does a cow say?", "chosen": " moo", "rejected": " I"}
{"prompt": "What does a dog say?", "chosen": " woof", "rejected": " Why do you ask?"}
)";
  const Ran trained =
      run_program({"train", "--model", model_, "--data", pairs_, "--eval", held, "--loss", "orpo",
                   "--steps", "6", "--out", out, "--threads", "1", "--json"});
  ASSERT_EQ(trained.code, 0) << trained.err;
  EXPECT_THAT(trained.err, HasSubstr("60 pairs and 2 to evaluate on; orpo, beta 0.1"));
  EXPECT_THAT(trained.err, HasSubstr("nats per token with their prompts"));
  const boost::json::value result = boost::json::parse(trained.out);
  const std::vector<std::string> eval = {"eval", "--model", model_, "--adapter", out, "--data",
                                         held,   "--loss",  "orpo", "--threads", "1"};
  std::vector<std::string> with_json = eval;
  with_json.emplace_back("--json");
  const boost::json::value part =
      boost::json::parse(run_program(with_json).out).at("data").at(0).at("results").at(1);
  EXPECT_EQ(part.at("loss"), result.at("eval_loss"));
  EXPECT_EQ(part.at("accuracy"), result.at("eval_accuracy"));
  EXPECT_GT(part.at("loss").to_number<double>(), part.at("nll_loss").to_number<double>());
  EXPECT_THAT(run_program(eval).out, HasSubstr("chosen nll"));
}

}  // namespace
}  // namespace strata::apps
