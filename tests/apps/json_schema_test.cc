// SPDX-License-Identifier: Apache-2.0
// strata generate and strata chat --json-schema, the program itself. make json-schemas holds
// answers to many schemas against the jsonschema package.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/json.hpp>

#include "base/error.h"
#include "structured/grammar.h"
#include "tests/apps/program.h"

namespace strata::apps {
namespace {

using ::testing::HasSubstr;

constexpr const char* kPerson = R"({"type": "object", "properties": {"name": {"type": "string",
    "maxLength": 8}, "age": {"type": "integer", "minimum": 0, "maximum": 130}, "of": {"enum":
    ["x", "y"]}}, "required": ["name", "age", "of"], "additionalProperties": false})";

class JsonSchemaOption : public ::testing::Test {
 protected:
  void SetUp() override {
    try {
      structured::require_grammars();
    } catch (const Error&) {
      GTEST_SKIP();  // tests/structured fails where they should be there
    }
  }
  std::string schema_file(const std::string& schema) {
    const std::string path = dir_.file("schema.json");
    std::ofstream(path) << schema;
    return path;
  }
  static Ran run(const Words& more) {
    Words args = {more[0],
                  "--model",
                  std::string(STRATA_SOURCE_DIR) + "/models/tiny-qwen3",
                  "--temperature",
                  "1",
                  "--top-p",
                  "1",
                  "--max-tokens",
                  "200",
                  "--threads",
                  "1"};
    args.insert(args.end(), more.begin() + 1, more.end());
    return run_program(args);
  }

  const TempDir dir_;
};

void expect_person(const std::string& text) {
  boost::system::error_code fault;
  const boost::json::value person = boost::json::parse(text, fault);
  ASSERT_FALSE(fault) << text;
  EXPECT_EQ(person.as_object().size(), 3u) << text;
  EXPECT_TRUE(person.at("name").is_string()) << text;
  EXPECT_GE(person.at("age").as_int64(), 0) << text;
  EXPECT_LE(person.at("age").as_int64(), 130) << text;
  EXPECT_TRUE(person.at("of") == "x" || person.at("of") == "y") << text;
}

TEST_F(JsonSchemaOption, AnswersThatEndFit) {
  const std::string file = schema_file(kPerson);
  int num_ended = 0;
  for (int seed = 0; seed < 6; ++seed) {
    const Ran ran = run({"generate", "--json-schema", file, "--prompt", "A person:", "--json",
                         "--seed", std::to_string(seed)});
    ASSERT_EQ(ran.code, 0) << ran.err;
    const boost::json::value answer = boost::json::parse(ran.out);
    if (answer.at("stop_reason") != "eos") continue;
    ++num_ended;
    expect_person(std::string(answer.at("text").as_string()));
  }
  EXPECT_GE(num_ended, 4);
}

TEST_F(JsonSchemaOption, EveryAnswerOfAChatFits) {
  const Ran one = run({"chat", "--json-schema", schema_file(kPerson), "--prompt",
                       "What is 7 plus 5?", "--seed", "1"});
  ASSERT_EQ(one.code, 0) << one.err;
  ASSERT_THAT(one.err, HasSubstr("ended by eos"));
  expect_person(one.out);
}

TEST_F(JsonSchemaOption, StagesMoveNoBit) {
  const std::string file = schema_file(kPerson);
  const Words asked = {"generate", "--json-schema", file, "--prompt", "A person:", "--seed", "2"};
  Words staged = asked;
  staged.insert(staged.end(), {"--stages", "2"});
  EXPECT_EQ(run(staged).out, run(asked).out);
}

TEST_F(JsonSchemaOption, WhatIsNotKeptIsRefusedByItsPath) {
  const auto fault_of = [&](const std::string& schema) {
    const Ran ran =
        run({"generate", "--json-schema", schema_file(schema), "--prompt", "A person:"});
    EXPECT_NE(ran.code, 0) << schema;
    return ran.err;
  };
  EXPECT_THAT(fault_of(R"({"properties": {"a": {"not": {}}}})"),
              HasSubstr("schema.json: #/properties/a/not: the keyword 'not' is not supported"));
  EXPECT_THAT(fault_of("{"), HasSubstr("schema.json: no JSON of at most 64 levels"));
  EXPECT_THAT(fault_of(R"({"type": "string", "pattern": "(?=a)b"})"),
              HasSubstr("--json-schema " + dir_.file("schema.json")));
  const Ran none = run({"generate", "--json-schema", dir_.file("none.json"), "--prompt", "A"});
  EXPECT_NE(none.code, 0);
  EXPECT_THAT(none.err, HasSubstr("none.json"));
}

}  // namespace
}  // namespace strata::apps
