// SPDX-License-Identifier: Apache-2.0
// Records as prompts (data/prompt.h): what the model reads, and what is kept of the record.
#include "data/prompt.h"

#include <gmock/gmock.h>

#include "tests/data/data_fixture.h"

namespace strata::data {
namespace {

using testing::HasSubstr;

constexpr ReadOptions kPrompts = {.max_length = 40, .prompts = true};

class Prompts : public DataTest {
 protected:
  [[nodiscard]] std::string text_of(const std::string& record) const {
    const Dataset prompts = read({{write("prompt.jsonl", record)}}, kPrompts);
    EXPECT_EQ(prompts.examples.size(), 1u);
    const Example example = prompts.examples[0];
    EXPECT_EQ(example.num_trained, 0);
    EXPECT_EQ(example.weights, std::vector<float>(example.tokens.size()));
    return tokenizer_.decode(example.tokens);
  }
  [[nodiscard]] std::string fault_of(const std::string& record) const {
    return fault({{write("prompt.jsonl", record)}}, kPrompts);
  }
};

TEST_F(Prompts, ATextIsGoneOnWith) {
  EXPECT_EQ(text_of(R"({"prompt": "What is 2 plus 2?", "answer": 4})"), "What is 2 plus 2?");
  EXPECT_EQ(text_of(R"({"prompt": "2"})"), "2");
}

TEST_F(Prompts, TurnsEndWhereTheAnswerBegins) {
  const std::string asked = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n";
  EXPECT_EQ(text_of(R"({"prompt": [{"role": "user", "content": "Hi"}]})"), asked);
  EXPECT_EQ(text_of(R"({"messages": [{"role": "user", "content": "Hi"}]})"), asked);
  EXPECT_EQ(text_of(R"({"messages": [{"role": "user", "content": "Hi"}, )"
                    R"({"role": "assistant", "content": "Hello"}]})"),
            asked);
  EXPECT_THAT(
      text_of(R"({"prompt": [{"role": "user", "content": "Hi"}], "tools": [{"name": "f"}]})"),
      HasSubstr("\"name\":\"f\""));
}

TEST_F(Prompts, RecordsAreKeptWithTheirPrompts) {
  const std::string lines = "{\"prompt\": \"a\", \"n\": 1}\n{\"prompt\": \"" +
                            std::string(200, 'x') + "y z\"}\n{\"prompt\": \"b\", \"n\": 3}\n";
  const Dataset prompts = read({{write("prompts.jsonl", lines)}}, kPrompts);
  ASSERT_EQ(prompts.examples.size(), 2u);
  EXPECT_EQ(prompts.num_too_long, 1);
  EXPECT_EQ(record_of(prompts, 1), R"({"prompt": "b", "n": 3})");
  EXPECT_THAT(overlong_text(prompts.files[0], kPrompts),
              HasSubstr("1 prompt has more than 40 tokens"));
  const Dataset turned = with_order(prompts, {1, 0, 1});
  EXPECT_EQ(record_of(turned, 0), R"({"prompt": "b", "n": 3})");
  EXPECT_EQ(record_of(turned, 1), R"({"prompt": "a", "n": 1})");
}

TEST_F(Prompts, WhatIsNoPromptIsNamed) {
  EXPECT_THAT(fault_of(R"({"text": "a"})"), HasSubstr("prompt.jsonl:1: messages: got nothing"));
  EXPECT_THAT(fault_of(R"({"prompt": 4})"), HasSubstr("prompt: got a number, want a prompt"));
  EXPECT_THAT(fault_of(R"({"prompt": ""})"), HasSubstr("prompt: got no token"));
  EXPECT_THAT(fault_of(R"({"prompt": []})"), HasSubstr("prompt: got no turn"));
  EXPECT_THAT(fault_of(R"({"prompt": ["Hi"]})"), HasSubstr("prompt[0]: got a string"));
}

}  // namespace
}  // namespace strata::data
