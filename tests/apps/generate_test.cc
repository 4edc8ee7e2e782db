// SPDX-License-Identifier: Apache-2.0
// strata generate and strata chat, the program itself: what they take from generation_config.json.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/json.hpp>

#include "tests/apps/program.h"

namespace strata::apps {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

const std::string kBundled = std::string(STRATA_SOURCE_DIR) + "/models/tiny-qwen3";

// The bundled model with another generation_config.json.
class GenerateTest : public ::testing::Test {
 protected:
  std::string model_with(const std::string& generation_config) {
    const std::filesystem::path dir = dir_.file("model");
    std::filesystem::remove_all(dir);
    std::filesystem::create_directories(dir);
    for (const auto& file : std::filesystem::directory_iterator(kBundled)) {
      if (file.path().filename() != "generation_config.json")
        std::filesystem::create_symlink(file.path(), dir / file.path().filename());
    }
    std::ofstream(dir / "generation_config.json") << generation_config;
    return dir.string();
  }
  static Ran generate(const std::string& model, const Words& more = {}) {
    Words args = {"generate",     "--model", model,       "--prompt", "Once upon a time",
                  "--max-tokens", "24",      "--threads", "2"};
    args.insert(args.end(), more.begin(), more.end());
    return run_program(args);
  }

  const TempDir dir_;
};

constexpr const char* kQwen =
    R"({"do_sample":true,"eos_token_id":[4072,4070],"temperature":0.6,"top_k":20,"top_p":0.95})";

TEST_F(GenerateTest, SamplesAsTheModelsFileSays) {
  const std::string model = model_with(kQwen);
  const Ran taken = generate(model, {"--seed", "5"});
  EXPECT_EQ(taken.code, 0) << taken.err;
  EXPECT_THAT(taken.err,
              HasSubstr("[from generation_config.json: temperature 0.6, top_k 20, top_p 0.95]\n"));
  const Ran named =
      generate(model, {"--seed", "5", "--temperature", "0.6", "--top-k", "20", "--top-p", "0.95"});
  EXPECT_EQ(taken.out, named.out);
  EXPECT_THAT(named.err, Not(HasSubstr("generation_config")));
}

TEST_F(GenerateTest, AModelThatNamesNoSamplingIsDrawnAsPeopleExpect) {
  const Words same = {"--seed", "5", "--temperature", "0.7", "--top-p", "0.9"};
  for (const char* config :
       {R"({"eos_token_id":[4072,4070]})", R"({"eos_token_id":[4072,4070],"do_sample":true})"}) {
    const std::string model = model_with(config);
    const Ran silent = generate(model, {"--seed", "5"});
    EXPECT_THAT(silent.err, HasSubstr("[the model names no sampling: temperature 0.7, top-p 0.9;"));
    const Ran named = generate(model, same);
    EXPECT_EQ(silent.out, named.out);
    EXPECT_THAT(named.err, Not(HasSubstr("names no sampling")));
    // Whoever names one draws as he says, and nothing is cut.
    const Ran hot = generate(model, {"--seed", "5", "--temperature", "1"});
    EXPECT_THAT(hot.err, Not(HasSubstr("names no sampling")));
    EXPECT_NE(hot.out, silent.out);
  }
  EXPECT_THAT(generate(model_with(R"({"top_k":5})")).err, Not(HasSubstr("names no sampling")));
}

TEST_F(GenerateTest, WhatIsNamedWins) {
  const std::string model = model_with(kQwen);
  const Ran one = generate(model, {"--seed", "5", "--top-k", "0"});
  EXPECT_THAT(one.err, HasSubstr("[from generation_config.json: temperature 0.6, top_p 0.95]\n"));
  EXPECT_EQ(one.out, generate(model_with(R"({"eos_token_id":[4072,4070]})"),
                              {"--seed", "5", "--temperature", "0.6", "--top-p", "0.95"})
                         .out);
}

TEST_F(GenerateTest, GreedyDrawsNoSeed) {
  const Ran named = generate(model_with(kQwen), {"--temperature", "0"});
  EXPECT_EQ(named.code, 0) << named.err;
  EXPECT_THAT(named.err, Not(HasSubstr("seed")));
  EXPECT_THAT(named.err, Not(HasSubstr("generation_config")));
  for (const char* config : {R"({"eos_token_id":[4072,4070],"do_sample":false,"top_k":20})",
                             R"({"eos_token_id":[4072,4070],"temperature":0.0})"}) {
    const Ran taken = generate(model_with(config));
    EXPECT_EQ(taken.out, named.out) << config;
    EXPECT_THAT(taken.err, HasSubstr("(greedy)]\n"));
    EXPECT_THAT(taken.err, Not(HasSubstr("seed")));
  }
  const Ran line = generate(model_with(kQwen), {"--temperature", "0", "--json"});
  EXPECT_FALSE(boost::json::parse(line.out).as_object().contains("seed"));
  EXPECT_THAT(generate(model_with(R"({"do_sample":false})"), {"--temperature", "0.7"}).err,
              HasSubstr("seed"));
}

TEST_F(GenerateTest, ChatTakesTheSame) {
  const auto chat = [](const std::string& model) {
    return run_program(
        {"chat", "--model", model, "--prompt", "What is 7 plus 5?", "--max-tokens", "24"});
  };
  const Ran greedy = chat(model_with(R"({"eos_token_id":[4072,4070],"do_sample":false})"));
  EXPECT_EQ(greedy.code, 0) << greedy.err;
  EXPECT_THAT(greedy.err, Not(HasSubstr("seed")));
  EXPECT_THAT(greedy.err, HasSubstr("[from generation_config.json: do_sample false (greedy)]\n"));
  EXPECT_THAT(chat(model_with(kQwen)).err, HasSubstr("[seed "));
}

// Of an answer: its tokens, from --json.
std::vector<int64_t> tokens_of(const Ran& ran) {
  EXPECT_EQ(ran.code, 0) << ran.err;
  std::vector<int64_t> out;
  const boost::json::value answer = boost::json::parse(ran.out);
  for (const auto& token : answer.at("tokens").as_array()) out.push_back(token.as_int64());
  return out;
}

TEST_F(GenerateTest, PenaltiesAndBiasMoveAnswersAndNeutralValuesDoNot) {
  const std::string model = model_with(R"({"eos_token_id":[4072,4070]})");
  const auto ask = [&](std::vector<std::string> more) {
    more.insert(more.end(), {"--json", "--temperature", "0"});
    return tokens_of(generate(model, more));
  };
  const std::vector<int64_t> plain = ask({});
  EXPECT_EQ(ask({"--presence-penalty", "0", "--frequency-penalty", "0", "--repetition-penalty", "1",
                 "--min-p", "0", "--logit-bias", "5:0"}),
            plain);
  const std::string first = std::to_string(plain.at(0));
  EXPECT_NE(ask({"--logit-bias", first + ":-100"}).at(0), plain.at(0));
  EXPECT_EQ(ask({"--logit-bias", "77:-1.5,9:100"}).at(0), 9);
  // No token comes twice where each costs more than any logit.
  std::vector<int64_t> once =
      ask({"--frequency-penalty", "2", "--presence-penalty", "2", "--repetition-penalty", "100"});
  std::sort(once.begin(), once.end());
  EXPECT_EQ(std::adjacent_find(once.begin(), once.end()), once.end());
}

TEST_F(GenerateTest, TakesThePenaltyOfTheFile) {
  const std::string with = model_with(R"({"eos_token_id":[4072,4070],"repetition_penalty":1.3})");
  const Ran taken = generate(with, {"--temperature", "0"});
  EXPECT_THAT(taken.err, HasSubstr("[from generation_config.json: repetition_penalty 1.3]\n"));
  EXPECT_EQ(generate(with, {"--temperature", "0", "--repetition-penalty", "1.3"}).out, taken.out);
  const Ran named = generate(with, {"--temperature", "0", "--repetition-penalty", "1"});
  EXPECT_THAT(named.err, Not(HasSubstr("generation_config")));
  EXPECT_EQ(generate(model_with(R"({"eos_token_id":[4072,4070]})"), {"--temperature", "0"}).out,
            named.out);
  // Cuts say nothing where nothing is drawn.
  EXPECT_THAT(generate(model_with(R"({"min_p":0.2})"), {"--temperature", "0"}).err,
              Not(HasSubstr("generation_config")));
  EXPECT_THAT(generate(model_with(R"({"min_p":0.2})")).err,
              HasSubstr("[from generation_config.json: min_p 0.2]\n"));
}

TEST_F(GenerateTest, RefusesABiasThatIsNone) {
  const std::string model = model_with("{}");
  for (const char* wrong : {"5", "5:", ":1", "5:101", "5:nan", "x:1", "5:1,", "5:1;6:1", "5:1x"}) {
    const Ran bad = generate(model, {"--logit-bias", wrong});
    EXPECT_EQ(bad.code, 2) << wrong;
    EXPECT_THAT(bad.err, HasSubstr("--logit-bias: got '")) << wrong;
    EXPECT_THAT(bad.err, HasSubstr("want ID:VALUE,... with values of -100 to 100")) << wrong;
  }
  EXPECT_THAT(generate(model, {"--logit-bias", "99999999:1"}).err,
              HasSubstr("logit_bias: got id 99999999"));
  EXPECT_THAT(generate(model, {"--repetition-penalty", "0"}).err, HasSubstr("want 0.01 to 100"));
}

TEST_F(GenerateTest, AFaultOfTheFileNamesTheOptionInstead) {
  const Ran bad = generate(model_with(R"({"top_p":2})"));
  EXPECT_EQ(bad.code, 2);
  EXPECT_THAT(bad.err, HasSubstr("generation_config.json: top_p: got 2, want a number above 0 and "
                                 "at most 1; or give --top-p"));
  EXPECT_EQ(generate(model_with(R"({"top_p":2})"), {"--top-p", "0.9"}).code, 0);
}

}  // namespace
}  // namespace strata::apps
