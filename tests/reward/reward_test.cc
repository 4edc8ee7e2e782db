// SPDX-License-Identifier: Apache-2.0
// Rules of --reward, and the line that a command reads.
#include "reward/reward.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

namespace strata::reward {
namespace {

using ::testing::HasSubstr;

const text::Tokenizer& tokenizer() {
  static const text::Tokenizer bundled =
      text::Tokenizer::load(std::string(STRATA_SOURCE_DIR) + "/models/tiny-qwen3");
  return bundled;
}

// It ends an answer with a token that it has for nothing else.
AnswerTokens tokens() { return {tokenizer(), {*tokenizer().token_to_id("<|im_end|>")}}; }

std::optional<double> rate(const std::string& rule, const std::string& record,
                           const std::string& completion) {
  Reward reward({.reward = rule}, "", tokens());
  EXPECT_EQ(reward.find_fault(record), "");
  reward.submit(7, record, completion);
  while (!reward.is_idle()) reward.run(10);
  const std::vector<Rated> rated = reward.take_rated();
  EXPECT_EQ(rated.size(), 1u);
  EXPECT_EQ(rated.at(0).id, 7u);
  return rated.at(0).value;
}

std::string fault_of(const std::string& rule, const std::string& record) {
  try {
    const std::string fault = Reward({.reward = rule}, "", tokens()).find_fault(record);
    return fault.empty() ? "no error" : fault;
  } catch (const Error& error) {
    return error.what();
  }
}

TEST(Reward, ExactIsTheField) {
  const std::string record = R"({"prompt": "p", "answer": " 42 ", "number": 42, "list": [1]})";
  EXPECT_EQ(rate("exact:answer", record, "\n42"), 1.0);
  EXPECT_EQ(rate("exact:number", record, "42"), 1.0);
  EXPECT_EQ(rate("exact:answer", record, "42."), 0.0);
  EXPECT_THAT(fault_of("exact:result", record), HasSubstr("no field 'result'"));
  EXPECT_THAT(fault_of("exact:list", record), HasSubstr("no text in 'list'"));
  EXPECT_THAT(fault_of("exact:", record), HasSubstr("want a field of the data"));
}

TEST(Reward, RegexIsFoundSomewhere) {
  const std::string record = R"({"prompt": "p", "sum": 12, "dot": "a.b"})";
  EXPECT_EQ(rate(R"(regex:\b{sum}\b)", record, "It is 12."), 1.0);
  EXPECT_EQ(rate(R"(regex:\b{sum}\b)", record, "It is 123."), 0.0);
  EXPECT_EQ(rate(R"(regex:^{dot}$)", record, "a.b"), 1.0);
  EXPECT_EQ(rate(R"(regex:^{dot}$)", record, "axb"), 0.0);  // a field is no pattern
  EXPECT_EQ(rate(R"(regex:^[a-z]{3}$)", record, "axb"), 1.0);
  EXPECT_EQ(rate(R"(regex:^[a-z]{3,4}$)", record, "ab"), 0.0);
  EXPECT_EQ(rate("regex:{sum}{sum}", record, "1212"), 1.0);
  EXPECT_THAT(fault_of("regex:{total}", record), HasSubstr("no field 'total'"));
  EXPECT_THAT(fault_of("regex:({sum}", record), HasSubstr("--reward"));
  EXPECT_THAT(fault_of("regex:(", record), HasSubstr("--reward"));
}

// It ends, and the answer has no number.
TEST(Reward, AHostileAnswerIsBounded) {
  EXPECT_EQ(rate("regex:^(a+)+(a+)+(a+)+$", "{}", std::string(5000, 'a') + "b"), std::nullopt);
}

TEST(Reward, ACommandReadsAllOfTheRecord) {
  EXPECT_EQ(
      make_line(R"({"answer": 4, "prompt": "2+2=", "completion": "old", "tags": ["a"]})", "4\n"),
      R"({"prompt":"2+2=","completion":"4\n","answer":4,"tags":["a"]})");
  EXPECT_EQ(make_line(R"({"messages": [{"role": "user", "content": "q"},
                                 {"role": "assistant", "content": "a"}]})",
                      "b"),
            R"({"prompt":[{"role":"user","content":"q"}],"completion":"b",)"
            R"("messages":[{"role":"user","content":"q"},{"role":"assistant","content":"a"}]})");
  EXPECT_EQ(rate("while read -r line; do echo ${#line}; done", R"({"prompt": "p"})", "c"), 31.0);
}

TEST(Reward, ASchemaIsFitted) {
  if (!STRATA_WANTS_GRAMMARS) GTEST_SKIP() << "built without grammars";
  const std::string path = ::testing::TempDir() + "strata_reward_schema.json";
  std::ofstream(path) << R"({"type": "object", "properties": {"name": {"type": "string"},
    "age": {"type": "integer"}}, "required": ["name", "age"], "additionalProperties": false})";
  const std::string rule = "json-schema:" + path;
  EXPECT_EQ(rate(rule, "{}", R"({"name": "Mia", "age": 7})"), 1.0);
  EXPECT_EQ(rate(rule, "{}", " {\"name\": \"Mia\", \"age\": 7}\n"), 1.0);
  EXPECT_EQ(rate(rule, "{}", R"({"name": "Mia"})"), 0.0);
  EXPECT_EQ(rate(rule, "{}", R"({"name": "Mia", "age": "7"})"), 0.0);
  EXPECT_EQ(rate(rule, "{}", R"({"name": "Mia", "age": 7)"), 0.0);
  EXPECT_EQ(rate(rule, "{}", R"({"name": "Mia", "age": 7} and more)"), 0.0);
  EXPECT_EQ(rate(rule, "{}", "Mia is 7."), 0.0);
  std::ofstream(path) << R"({"type": "nothing"})";
  EXPECT_THAT(fault_of(rule, "{}"), HasSubstr("--reward json-schema:"));
}

TEST(Reward, WhatIsNotThereIsRefused) {
  EXPECT_THAT(fault_of("json-schema:/nonexistent", "{}"), HasSubstr("/nonexistent"));
  EXPECT_THROW(Reward({.reward = "cat", .timeout = "soon"}, "", tokens()), Error);
}

}  // namespace
}  // namespace strata::reward
