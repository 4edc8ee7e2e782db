// SPDX-License-Identifier: Apache-2.0
// Conversations with calls of tools, through the templates of their families.
#include "server/openai/chat_body.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/files.h"
#include "server/openai/openai_error.h"
#include "tests/server/openai/openai_house.h"

namespace strata::server {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

const char* const kTools =
    R"("tools":[{"type":"function","function":{"name":"weather","parameters":{"type":"object",)"
    R"("properties":{"city":{"type":"string"},"least":{"type":"number","minimum":0.5}}}}}])";

// A question, a call, its result.
std::string conversation(const std::string& id, const std::string& more) {
  return R"({"messages":[{"role":"user","content":"Weather?"},{"role":"assistant","content":null,)"
         R"("reasoning_content":"hm","refusal":null,"tool_calls":[{"id":")" +
         id +
         R"(","type":"function","function":{"name":"weather","arguments":"{\"city\": \"Oslo\"}"}}]},)"
         R"({"role":"tool","tool_call_id":")" +
         id + R"(","content":[{"type":"text","text":"sunny"},{"type":"text","text":"warm"}]}],)" +
         kTools + more + "}";
}

std::string rendered(const std::string& name, const std::string& body,
                     const std::string& vars = "") {
  ServedText text = bundled_text();
  text.vars = vars;
  const std::string path = STRATA_SOURCE_DIR "/tests/data/third_party/templates/" + name + ".jinja";
  text.chat = text::ChatTemplate::parse(read_file(path, 1 << 20),
                                        R"({"bos_token":"<s>","eos_token":"</s>"})");
  const text::JsonBody json(body, "chat");
  return text.chat->render(read_conversation(json.root(), text));
}

TEST(ChatBody, NumbersThatNothingHoldsAreTheFieldsFault) {
  std::string body = conversation("call_1", "");
  const size_t at = body.find(R"(\"Oslo\")");
  body.replace(at, 8, "[1e999]");
  try {
    rendered("qwen25", body);
    ADD_FAILURE();
  } catch (const text::FieldFault& fault) {
    EXPECT_THAT(fault.field, HasSubstr("arguments"));
    EXPECT_THAT(fault.what(), HasSubstr("1e999 does not fit a double"));
  }
  body = conversation("call_1", "");
  body.replace(body.find("0.5"), 3, "-1e999");
  EXPECT_THROW(rendered("qwen25", body), text::FieldFault);
}

TEST(ChatBody, CallsGoThroughTheTemplateOfTheirFamily) {
  const std::string id = "call_0123456789abcdef01234567";
  const std::string qwen = rendered("qwen25", conversation(id, ""));
  EXPECT_THAT(qwen, HasSubstr(R"({"name": "weather", "arguments": {"city": "Oslo"}})"));
  EXPECT_THAT(qwen, HasSubstr("<tool_response>\nsunny\nwarm\n</tool_response>"));
  EXPECT_THAT(qwen, HasSubstr(R"("minimum": 0.5)"));
  EXPECT_THAT(rendered("qwen35", conversation(id, "")),
              HasSubstr("<function=weather>\n<parameter=city>\nOslo\n</parameter>"));
  EXPECT_THAT(rendered("qwen35", conversation(id, "")), HasSubstr("<think>\nhm\n</think>"));
  // Which wants ids of nine characters.
  EXPECT_THAT(rendered("mistral_v3", conversation(id, "")), HasSubstr(R"("call_id": "f01234567")"));
  EXPECT_THAT(rendered("llama31", conversation(id, "")),
              HasSubstr(R"({"name": "weather", "parameters": {"city": "Oslo"}})"));
  EXPECT_THAT(rendered("deepseek_v3", conversation(id, "")),
              HasSubstr("weather\n```json\n{\"city\": \"Oslo\"}\n```"));
}

TEST(ChatBody, ToolsThatMayNotBeCalledAreNotShown) {
  const std::string body = conversation("abcdefghi", R"(,"tool_choice":"none")");
  EXPECT_THAT(rendered("qwen25", body), Not(HasSubstr("# Tools")));
}

TEST(ChatBody, ADeveloperIsTheSystemAndVariablesReachTheTemplate) {
  const std::string body =
      R"({"messages":[{"role":"developer","content":"Be brief."},{"role":"user","content":"Hi"}],)"
      R"("chat_template_kwargs":{"enable_thinking":false}})";
  const std::string text = rendered("qwen3", body);
  EXPECT_THAT(text, HasSubstr("<|im_start|>system\nBe brief."));
  EXPECT_TRUE(text.ends_with("<think>\n\n</think>\n\n"));
}

TEST(ChatBody, TheServersVariablesAreThoseThatARequestDoesNotHave) {
  const std::string hello = R"({"messages":[{"role":"user","content":"Hi"}])";
  const std::string off = R"({"enable_thinking":false})";
  EXPECT_TRUE(rendered("qwen3", hello + "}", off).ends_with("<think>\n\n</think>\n\n"));
  const std::string on = hello + R"(,"chat_template_kwargs":{"enable_thinking":true}})";
  EXPECT_EQ(rendered("qwen3", on, off), rendered("qwen3", on));
  EXPECT_NE(rendered("qwen3", on, off), rendered("qwen3", hello + "}", off));
}

// Clients of before tools, and other trainers' data as they are.
TEST(ChatBody, OlderFormsOfCallsAreReadAsThoseOfToday) {
  const std::string today =
      R"({"messages":[{"role":"user","content":"Weather?"},{"role":"assistant","content":"",)"
      R"("tool_calls":[{"type":"function","function":{"name":"weather","arguments":)"
      R"("{\"city\": \"Oslo\"}"}}]},{"role":"tool","content":"sunny"}]})";
  const std::string before =
      R"({"messages":[{"role":"user","content":"Weather?"},{"role":"assistant",)"
      R"("function_call":{"name":"weather","arguments":{"city":"Oslo"}},"weight":0},)"
      R"({"role":"function","content":"sunny"}]})";
  for (const char* name : {"qwen25", "qwen35", "llama31", "mistral_v3", "deepseek_v3"})
    EXPECT_EQ(rendered(name, before), rendered(name, today)) << name;
}

TEST(ChatBody, WhatATemplateRefusesIsAFaultOfTheMessages) {
  ServedText text = bundled_text();
  text.chat = text::ChatTemplate::parse("{{ raise_exception('alternate, please') }}");
  OpenAiHouse strict({}, text);
  const auto answer = strict.chat(R"("messages":[{"role":"user","content":"x"}])");
  EXPECT_EQ(answer->response.status, 400);
  EXPECT_EQ(answer->error("param"), "messages");
  EXPECT_THAT(answer->error("message"), HasSubstr("alternate, please"));
}

}  // namespace
}  // namespace strata::server
