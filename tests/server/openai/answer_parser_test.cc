// SPDX-License-Identifier: Apache-2.0
#include "server/openai/answer_parser.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "base/files.h"

namespace strata::server {
namespace {

constexpr const char* kTools = R"([{"type":"function","function":{"name":"weather","parameters":{
  "type":"object","properties":{"city":{"type":"string"},"days":{"type":"integer"},
  "exact":{"type":"boolean"},"share":{"type":["null","number"]},"tags":{"type":"array"},
  "where":{"anyOf":[{"type":"object"},{"type":"null"}]}}}}}])";

AnswerForm form_of(const std::string& name) {
  // Gemma 4's templates come with the tokenizers of the tests.
  const std::string folder = name.starts_with("gemma4") ? STRATA_TOKENIZERS "/trl/"
                                                        : STRATA_SOURCE_DIR
                                 "/tests/data/third_party/templates/";
  return answer_form_of(text::ChatTemplate::parse(read_file(folder + name + ".jinja", 1 << 20)));
}

struct Read {
  std::string reasoning, content, calls;  // NAME(ARGUMENTS) each; until the end without the last )
  bool operator==(const Read&) const = default;
};

std::ostream& operator<<(std::ostream& out, const Read& read) {
  return out << "reasoning '" << read.reasoning << "' content '" << read.content << "' calls "
             << read.calls;
}

void add(Read& read, const AnswerPiece& piece) {
  read.reasoning += piece.reasoning;
  read.content += piece.content;
  for (const ToolCall& call : piece.calls) {
    if (!call.name.empty()) read.calls += (read.calls.empty() ? "" : ")") + call.name + "(";
    read.calls += call.arguments;
  }
}

Read read_in_steps(const AnswerForm& form, const AnswerReading& reading, const std::string& text,
                   size_t step) {
  AnswerParser parser(form, reading);
  Read read;
  for (size_t i = 0; i < text.size(); i += step) {
    add(read, parser.push(std::string_view(text).substr(i, step)));
  }
  add(read, parser.finish());
  if (!read.calls.empty()) read.calls += ")";
  return read;
}

// Whole, byte by byte and in pieces in between: the same.
Read read_answer(const std::string& name, const std::string& text, bool in_reasoning = false,
                 bool has_tools = true, int64_t most_calls = INT64_MAX) {
  const ToolTypes types(kTools);
  const AnswerForm form = form_of(name);
  const AnswerReading reading = {.in_reasoning = in_reasoning,
                                 .types = has_tools ? &types : nullptr,
                                 .most_calls = most_calls};
  const Read whole = read_in_steps(form, reading, text, text.size() + 1);
  for (const size_t step : {1, 2, 3, 5, 7, 11}) {
    EXPECT_EQ(read_in_steps(form, reading, text, step), whole) << "in steps of " << step;
  }
  return whole;
}

TEST(AnswerParser, QwenWritesJsonBetweenMarks) {
  const Read read = read_answer(
      "qwen25",
      "Let me look.\n<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Paris\"}}\n"
      "</tool_call>\n<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>");
  EXPECT_EQ(read, (Read{"", "Let me look.", "weather({\"city\": \"Paris\"})now({})"}));
}

TEST(AnswerParser, ReasoningComesFirst) {
  const Read read = read_answer("qwen3",
                                "<think>\nI need\n\nthe city.\n</think>\n\nSure.\n\n<tool_call>\n"
                                "{\"name\": \"weather\", \"arguments\": {\"city\": \"a } b\", "
                                "\"n\": [1.0, 2]}}\n</tool_call>");
  EXPECT_EQ(read, (Read{"I need\n\nthe city.", "Sure.",
                        "weather({\"city\": \"a } b\", \"n\": [1.0, 2]})"}));
  EXPECT_EQ(read_answer("qwen3", "<think>\n\n</think>\n\nHi <think> there\n"),
            (Read{"", "Hi <think> there\n", ""}));
  // Of an answer that ran out of tokens in the midst.
  EXPECT_EQ(read_answer("qwen3", "<think>\nI nee"), (Read{"I nee", "", ""}));
  EXPECT_EQ(read_answer("qwen3", "<thin"), (Read{"", "<thin", ""}));
  EXPECT_EQ(read_answer("qwen3", "  "), (Read{"", "  ", ""}));
}

TEST(AnswerParser, APromptMayEndInReasoning) {
  const AnswerForm form = form_of("qwen35");
  EXPECT_TRUE(ends_in_reasoning(form, "<|im_start|>assistant\n<think>\n"));
  EXPECT_FALSE(ends_in_reasoning(form, "<|im_start|>assistant\n<think>\n\n</think>\n\n"));
  EXPECT_FALSE(ends_in_reasoning(form_of("qwen25"), "<think>\n"));
  EXPECT_EQ(read_answer("qwen35", "Easy.\n</think>\n\nParis", true), (Read{"Easy.", "Paris", ""}));
}

TEST(AnswerParser, Qwen35WritesFunctionsOfTheSchemasTypes) {
  const Read read = read_answer("qwen35",
                                "<tool_call>\n<function=weather>\n<parameter=city>\nNew\nYork\n"
                                "</parameter>\n<parameter=days>\n3\n</parameter>\n"
                                "<parameter=exact>\nTrue\n</parameter>\n<parameter=share>\n0.5\n"
                                "</parameter>\n<parameter=tags>\n[\"a\"]\n</parameter>\n"
                                "<parameter=where>\nnull\n</parameter>\n<parameter=other>\n7\n"
                                "</parameter>\n</function>\n</tool_call>");
  EXPECT_EQ(read.calls,
            "weather({\"city\":\"New\\nYork\",\"days\":3,\"exact\":true,\"share\":0.5,"
            "\"tags\":[\"a\"],\"where\":null,\"other\":\"7\"})");
  // What does not read as its type stays what was written.
  EXPECT_EQ(read_answer("qwen36",
                        "<tool_call>\n<function=weather>\n<parameter=days>\na few\n</parameter>\n"
                        "<parameter=exact>\nperhaps\n</parameter>\n<parameter=tags>\n[a\n"
                        "</parameter>\n</function>\n</tool_call>")
                .calls,
            "weather({\"days\":\"a few\",\"exact\":\"perhaps\",\"tags\":\"[a\"})");
}

TEST(AnswerParser, Gemma4ThinksInAChannelAndHasQuotesOfItsOwn) {
  const std::string call =
      "<|tool_call>call:weather{city:<|\"|>a, {b: \"c\"}\n<|\"|>,where:{x:[1,{y:null}]},days:3}"
      "<tool_call|>";
  const std::string want =
      "weather({\"city\":\"a, {b: \\\"c\\\"}\\n\",\"where\":{\"x\":[1,{\"y\":null}]},"
      "\"days\":3})";
  for (const char* name : {"gemma4", "gemma4_v2", "gemma4_v3", "gemma4_v4", "gemma4_v5"}) {
    SCOPED_TRACE(name);
    EXPECT_EQ(read_answer(name, "<|channel>thought\nI need\n<it>.\n<channel|>Sure.\n" + call +
                                    "<|tool_call>call:now{}<tool_call|>"),
              (Read{"I need\n<it>.", "Sure.", want + "now({})"}));
    // Of larger models that do not think the thought is empty.
    EXPECT_EQ(read_answer(name, "<|channel>thought\n<channel|>Paris"), (Read{"", "Paris", ""}));
    EXPECT_EQ(read_answer(name, "Easy.\n<channel|>Paris", true), (Read{"Easy.", "Paris", ""}));
    EXPECT_EQ(read_answer(name, call, false, /*has_tools=*/false), (Read{"", call, ""}));
    // Cut in the midst of a text, and of a list.
    EXPECT_EQ(read_answer(name, "<|tool_call>call:weather{days:3,city:<|\"|>Par").calls,
              "weather({\"days\":3,\"city\":\"Par\"})");
    EXPECT_EQ(read_answer(name, "<|tool_call>call:weather{days:3,tags:[1,").calls,
              "weather({\"days\":3})");
  }
  EXPECT_TRUE(ends_in_reasoning(form_of("gemma4"), "<|turn>model\n<|channel>thought\n"));
  EXPECT_FALSE(ends_in_reasoning(form_of("gemma4"), "<|channel>thought\n<channel|>"));
  const std::vector<std::string_view> marks = form_of("gemma4").marks();
  for (const char* token : {"<|channel>", "<channel|>", "<|tool_call>", "<tool_call|>", "<|\"|>"})
    EXPECT_EQ(std::ranges::count(marks, token), 1) << token;
}

TEST(AnswerParser, MistralWritesAListOrNames) {
  EXPECT_EQ(read_answer("mistral_v3",
                        "[TOOL_CALLS] [{\"name\": \"weather\", \"arguments\": {\"city\": \"[x]\"}, "
                        "\"id\": \"abcdefghi\"}, {\"name\": \"now\", \"arguments\": {}}]"),
            (Read{"", "", "weather({\"city\": \"[x]\"})now({})"}));
  EXPECT_EQ(
      read_answer("mistral_v3", "Well.[TOOL_CALLS]weather[ARGS]{\"city\": \"a\"}[TOOL_CALLS]now{}"),
      (Read{"", "Well.", "weather({\"city\": \"a\"})now({})"}));
  EXPECT_EQ(read_answer("mistral_v7", "[TOOL_CALLS]now[CALL_ID]123456789[ARGS]{\"a\": {}}").calls,
            form_of("mistral_v7").calls == nullptr ? "" : "now({\"a\": {}})");
}

TEST(AnswerParser, Llama31WritesNothingButObjects) {
  const std::string call = "{\"name\": \"weather\", \"parameters\": {\"city\": \"a;b\"}}";
  EXPECT_EQ(read_answer("llama31", call).calls, "weather({\"city\": \"a;b\"})");
  EXPECT_EQ(read_answer("llama31", "<|python_tag|>" + call + "; " + call).calls,
            "weather({\"city\": \"a;b\"})weather({\"city\": \"a;b\"})");
  EXPECT_EQ(read_answer("llama31", "I say {\"name\": 1}"), (Read{"", "I say {\"name\": 1}", ""}));
  EXPECT_EQ(read_answer("llama31", "{\"no\": \"call\"}"), (Read{"", "{\"no\": \"call\"}", ""}));
  EXPECT_EQ(read_answer("llama31", "{\"name\": \"weat"), (Read{"", "{\"name\": \"weat", ""}));
}

TEST(AnswerParser, DeepSeekV3WritesFencesOrNot) {
  const std::string begin = "<\uff5ctool\u2581call\u2581begin\uff5c>";
  const std::string sep = "<\uff5ctool\u2581sep\uff5c>",
                    end = "<\uff5ctool\u2581call\u2581end\uff5c>";
  const std::string calls_begin = "<\uff5ctool\u2581calls\u2581begin\uff5c>";
  const std::string calls_end = "<\uff5ctool\u2581calls\u2581end\uff5c>";
  EXPECT_EQ(read_answer("deepseek_v3", "I look." + calls_begin + begin + "function" + sep +
                                           "weather\n```json\n{\"city\": \"```\"}\n```" + end +
                                           "\n" + begin + "function" + sep +
                                           "now\n```json\n{}\n```" + end + calls_end),
            (Read{"", "I look.", "weather({\"city\": \"```\"})now({})"}));
  EXPECT_EQ(
      read_answer("deepseek_v3",
                  "</think>" + calls_begin + begin + "now" + sep + "{\"a\": 1}" + end + calls_end,
                  true),
      (Read{"", "", "now({\"a\": 1})"}));
}

TEST(AnswerParser, DeepSeekV4WritesDsml) {
  const AnswerForm form = answer_form_of(text::ChatTemplate::parse("</think>\uff5cDSML\uff5c"));
  const ToolTypes types(kTools);
  const std::string text =
      "plan</think>Looking.\n\n<\uff5cDSML\uff5ctool_calls>\n<\uff5cDSML\uff5cinvoke "
      "name=\"weather\">\n"
      "<\uff5cDSML\uff5cparameter name=\"city\" "
      "string=\"true\">Pa\"ris</\uff5cDSML\uff5cparameter>\n"
      "<\uff5cDSML\uff5cparameter name=\"days\" string=\"false\">[1, "
      "2]</\uff5cDSML\uff5cparameter>\n"
      "</\uff5cDSML\uff5cinvoke>\n</\uff5cDSML\uff5ctool_calls>";
  for (const size_t step : {size_t{1}, size_t{6}, text.size()}) {
    EXPECT_EQ(read_in_steps(form, {.in_reasoning = true, .types = &types}, text, step),
              (Read{"plan", "Looking.", "weather({\"city\":\"Pa\\\"ris\",\"days\":[1, 2]})"}));
  }
}

struct Written {
  const char* form;
  std::string text;
  std::vector<std::string> pieces;  // a byte at a time
};

// The name comes first, as soon as arguments begin, and these as the model writes them.
TEST(AnswerParser, ACallIsGivenWhileItIsWritten) {
  const std::string sep = "<\uff5ctool\u2581sep\uff5c>";
  const std::string begin = "<\uff5ctool\u2581call\u2581begin\uff5c>";
  const ToolTypes types(kTools);
  const Written kCases[] = {
      {"qwen25",
       "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1",
       {"f", "{", "\"", "a", "\"", ":", " ", "1"}},
      {"llama31", "{\"id\": 3, \"name\": \"f\", \"parameters\": {}", {"f", "{", "}"}},
      {"mistral_v3", "[TOOL_CALLS]f[ARGS]{\"", {"f", "{", "\""}},
      {"deepseek_v3", begin + "function" + sep + "f\n```json\n{}", {"f", "{", "}"}},
      {"qwen35",
       "<tool_call>\n<function=weather>\n<parameter=days>\n3\n</parameter>\n<parameter=city>\nx",
       {"weather", "{", "\"days\":3"}},
  };
  for (const Written& of : kCases) {
    AnswerParser parser(form_of(of.form), {.types = &types});
    std::vector<std::string> pieces;
    for (const char c : of.text) {
      const AnswerPiece piece = parser.push(std::string_view(&c, 1));
      EXPECT_EQ(piece.content, "") << of.form;
      for (const ToolCall& call : piece.calls) {
        if (!call.name.empty()) pieces.push_back(call.name);
        if (!call.arguments.empty()) pieces.push_back(call.arguments);
      }
    }
    EXPECT_EQ(pieces, of.pieces) << of.form;
  }
}

// What ran out of tokens in the midst of its arguments, or breaks them off, is a call with these.
TEST(AnswerParser, ArgumentsAreWhatTheModelWrote) {
  EXPECT_EQ(read_answer("qwen25", "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"b"),
            (Read{"", "", "f({\"a\": \"b)"}));
  EXPECT_EQ(read_answer("qwen25",
                        "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": tru}}</tool_call>x"),
            (Read{"", "x", "f({\"a\": tru})"}));
  EXPECT_EQ(read_answer("qwen35", "<tool_call><function=f><parameter=a>\nb"),
            (Read{"", "", "f({\"a\":\"b\"})"}));
  EXPECT_EQ(read_answer("mistral_v3", "[TOOL_CALLS]f[ARGS]{\"a\": 1} and more"),
            (Read{"", "and more", "f({\"a\": 1})"}));
}

TEST(AnswerParser, WhatIsNoCallIsContent) {
  for (const char* text : {"<tool_call>\nnot json\n</tool_call>", "<tool_call>[1]</tool_call>x",
                           "<tool_call>{\"name\": \"f\", \"arguments\": [1]}</tool_call>",
                           "<tool_call>", "a <tool_call>{\"name\": \"f\"",
                           "<tool_call>\n<function=\n</tool_call> b", "</tool_call> <tool"}) {
    EXPECT_EQ(read_answer("qwen25", text), (Read{"", text, ""}));
    EXPECT_EQ(read_answer("qwen25", text, false, /*has_tools=*/false), (Read{"", text, ""}));
  }
  const std::string call = "<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>";
  EXPECT_EQ(read_answer("qwen25", call, false, /*has_tools=*/false).content, call);
  EXPECT_EQ(read_answer("smollm2", call).content, call);
}

TEST(AnswerParser, StopsAtTheMostCalls) {
  const std::string call = "<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>";
  EXPECT_EQ(read_answer("qwen25", call + call + "more", false, true, 1), (Read{"", "", "f({})"}));
}

TEST(AnswerParser, LongArgumentsTakeLinearTime) {
  const ToolTypes types(kTools);
  AnswerParser parser(form_of("qwen3"), {.types = &types});
  size_t given = 0;
  parser.push("<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"");
  for (int i = 0; i < 300'000; ++i) {
    for (const ToolCall& call : parser.push("<too").calls) given += call.arguments.size();
  }
  EXPECT_GT(given, 1'100'000u);
}

TEST(ToolTypes, HostileReferencesAreReadOnce) {
  std::string self, more;
  for (int i = 0; i < 12; ++i) self += R"({"$ref": "#/$defs/a"}, )";
  for (int i = 0; i < 30'000; ++i)
    more += R"("p)" + std::to_string(i) + R"(": {"$ref": "#/$defs/b"}, )";
  std::string many;
  for (int i = 0; i < 30'000; ++i) many += R"({"type": "null"}, )";
  const ToolTypes types(
      R"([{"type": "function", "function": {"name": "f", "parameters": {"properties":
      {"a": {"$ref": "#/$defs/a"}, )" +
      more + R"("all": {"$ref": "#"}}, "type": "object", "$defs":
      {"a": {"anyOf": [)" +
      self + R"({"type": "integer"}]}, "b": {"anyOf": [)" + many + R"({"type": "string"}]}}}}}])");
  EXPECT_EQ(types.value_json("f", "a", "7"), "7");
  EXPECT_EQ(types.value_json("f", "p0", "7"), R"("7")");
}

// Megabytes of one mark's beginning cost no more than reading them.
TEST(AnswerParser, HostileAnswersTakeLinearTime) {
  const ToolTypes types(kTools);
  const AnswerForm form = form_of("qwen3");
  AnswerParser parser(form, {.types = &types});
  for (int i = 0; i < 200'000; ++i) parser.push(i == 0 ? "<tool_call>" : "{\"a\":");
  EXPECT_GT(parser.finish().content.size(), 900'000u);
}

}  // namespace
}  // namespace strata::server
