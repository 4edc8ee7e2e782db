// SPDX-License-Identifier: Apache-2.0
// gpt-oss' answers: channels, calls, and what is none of these; whole, byte by byte and between.
#include "text/harmony_reader.h"

#include <gtest/gtest.h>

#include "base/files.h"
#include "server/openai/answer_parser.h"

namespace strata::server {
namespace {

struct Read {
  std::string reasoning, content, calls;
  bool operator==(const Read&) const = default;
};
std::ostream& operator<<(std::ostream& out, const Read& read) {
  return out << "reasoning '" << read.reasoning << "' content '" << read.content << "' calls "
             << read.calls;
}

Read read_in_steps(const std::string& text, size_t step, bool has_tools, int64_t most_calls) {
  const ToolTypes types("[]");
  const AnswerForm form = {.think = {}, .think_end = {}, .has_channels = true};
  AnswerParser parser(form, {.types = has_tools ? &types : nullptr, .most_calls = most_calls});
  Read read;
  std::vector<ToolCall> calls;
  const auto add = [&](AnswerPiece piece) {
    read.reasoning += piece.reasoning;
    read.content += piece.content;
    append_call_pieces(calls, std::move(piece.calls));
  };
  for (size_t i = 0; i < text.size() && !parser.is_done(); i += step) {
    add(parser.push(std::string_view(text).substr(i, step)));
  }
  add(parser.finish());
  EXPECT_EQ(parser.num_calls(), std::ssize(calls));
  for (const ToolCall& call : calls) read.calls += call.name + call.arguments + ";";
  return read;
}

Read read_answer(const std::string& text, bool has_tools = true, int64_t most_calls = INT64_MAX) {
  const Read whole = read_in_steps(text, text.size() + 1, has_tools, most_calls);
  for (const size_t step : {1, 2, 3, 7, 13}) {
    EXPECT_EQ(read_in_steps(text, step, has_tools, most_calls), whole) << step;
  }
  return whole;
}

const std::string kThought = "<|channel|>analysis<|message|>2 + 2 < 5\n<|end|>";

TEST(HarmonyReader, ReasoningAndContent) {
  EXPECT_EQ(read_answer(kThought + "<|start|>assistant<|channel|>final<|message|>It is 4."),
            (Read{"2 + 2 < 5\n", "It is 4.", ""}));
  EXPECT_EQ(read_answer("<|channel|>final<|message|>It is 4.<|return|>"),
            (Read{"", "It is 4.", ""}));
  EXPECT_EQ(read_answer(kThought), (Read{"2 + 2 < 5\n", "", ""}));
  // Cut in a thought, in a header, in a mark.
  EXPECT_EQ(read_answer("<|channel|>analysis<|message|>2 +"), (Read{"2 +", "", ""}));
  EXPECT_EQ(read_answer(kThought + "<|start|>assis"), (Read{"2 + 2 < 5\n", "", ""}));
  EXPECT_EQ(read_answer("<|channel|>final<|message|>a <|en"), (Read{"", "a <|en", ""}));
}

TEST(HarmonyReader, Calls) {
  const std::string arguments = R"({"city": "<|x|>", "days": 2})";
  const Read want = {"2 + 2 < 5\n", "", "weather" + arguments + ";"};
  EXPECT_EQ(read_answer(kThought +
                        "<|start|>assistant<|channel|>commentary to=functions.weather "
                        "<|constrain|>json<|message|>" +
                        arguments + "<|call|>"),
            want);
  // The recipient first, as the template writes history; the end is an end token.
  EXPECT_EQ(read_answer(kThought +
                        "<|start|>assistant to=functions.weather<|channel|>commentary "
                        "json<|message|>" +
                        arguments),
            want);
  EXPECT_EQ(read_answer(" to=functions.f<|channel|>commentary json<|message|>{}<|call|>"),
            (Read{"", "", "f{};"}));
}

TEST(HarmonyReader, APreambleIsContent) {
  EXPECT_EQ(read_answer("<|channel|>commentary<|message|>I look it up.<|end|><|start|>assistant to="
                        "functions.f<|channel|>commentary json<|message|>{\"a\":1}"),
            (Read{"", "I look it up.", "f{\"a\":1};"}));
}

TEST(HarmonyReader, WithoutToolsCallsAreContent) {
  EXPECT_EQ(read_answer("<|channel|>commentary to=functions.f json<|message|>{\"a\":1}", false),
            (Read{"", "{\"a\":1}", ""}));
}

TEST(HarmonyReader, NothingFollowsTheLastCall) {
  const std::string call =
      "<|start|>assistant to=functions.f<|channel|>commentary json<|message|>{}"
      "<|call|>";
  EXPECT_EQ(read_answer(call + call + call, true, 2), (Read{"", "", "f{};f{};"}));
}

TEST(HarmonyReader, TextWithoutAHeaderIsContent) {
  EXPECT_EQ(read_answer("Hello <b>there</b>"), (Read{"", "Hello <b>there</b>", ""}));
  EXPECT_EQ(read_answer("<|channel|>commentary to=functions.f json<|message|>no object"),
            (Read{"", "no object", ""}));
  EXPECT_EQ(read_answer("<|channel|>commentary to=browser.search<|message|>{}"),
            (Read{"", "{}", ""}));
}

TEST(HarmonyReader, IsFoundByTheTemplate) {
  const auto chat = text::ChatTemplate::parse(
      read_file(STRATA_SOURCE_DIR "/tests/data/third_party/templates/gptoss.jinja", 1 << 20));
  const AnswerForm form = answer_form_of(chat);
  EXPECT_TRUE(form.has_channels);
  EXPECT_EQ(form.marks().front(), "<|start|>");
  EXPECT_FALSE(answer_form_of(text::ChatTemplate::parse("{{ '<think>' }}</think>")).has_channels);
}

}  // namespace
}  // namespace strata::server
