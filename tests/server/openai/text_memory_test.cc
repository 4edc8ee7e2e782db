// SPDX-License-Identifier: Apache-2.0
// What chats and completions take on their way to tokens is told before it is taken.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/openai/chat_body.h"
#include "server/openai/completion_body.h"
#include "server/openai/openai_error.h"
#include "tests/base/heap_count.h"
#include "tests/server/openai/openai_house.h"

namespace strata::server {
namespace {

using strata::testing::heap_peak_of;
using ::testing::HasSubstr;

constexpr size_t kMiB = 1 << 20;
constexpr size_t kUntold = kMiB / 2;

std::string repeated(const std::string& unit, size_t bytes) {
  std::string out;
  while (out.size() < bytes) out += unit;
  return out;
}

std::string joined(const std::string& unit, size_t bytes) {
  return unit + repeated("," + unit, bytes);
}

struct Cost {
  size_t told = 0;
  size_t taken = 0;
  std::string fault;
};

template <typename Read>
Cost cost(Read read) {
  Cost out;
  const TakeMemory take = [&](size_t bytes) { out.told = std::max(out.told, bytes); };
  out.taken = heap_peak_of([&] {
    try {
      (void)read(take);
    } catch (const Error& error) {
      out.fault = error.what();
    }
  });
  return out;
}

api::BaseInfo long_base() {
  api::BaseInfo base = bundled_base();
  base.max_context = 131072;
  return base;
}

constexpr size_t kLong = kMiB / 2;
std::vector<std::string> conversations() {
  const auto says = [](const std::string& text) {
    return R"({"role":"user","content":")" + text + R"("})";
  };
  const std::string function = R"({"type":"function","function":{"name":"f","parameters":)";
  const auto with_tools = [&](const std::string& parameters) {
    return R"({"messages":[)" + says("hi") + R"(],"tools":[)" + function + parameters + "}}]}";
  };
  const auto with_arguments = [&](const std::string& text) {
    return R"({"messages":[)" + says("hi") +
           R"(,{"role":"assistant","tool_calls":[{"id":"callcall1",)"
           R"("function":{"name":"f","arguments":")" +
           text + R"("}}]}]})";
  };
  return {
      R"({"messages":[)" + says(repeated("some words ", kLong)) + "]}",
      R"({"messages":[)" + says(repeated(" ", kLong)) + "]}",
      R"({"messages":[)" + says(repeated("a", kLong)) + "]}",
      R"({"messages":[)" + says(repeated("\xC3\xA9", kLong)) + "]}",
      R"({"messages":[)" + says(repeated(R"(\n<\u0001)", kLong)) + "]}",
      R"({"messages":[)" + joined(says(""), kLong) + "]}",
      R"({"messages":[)" + joined(says("") + R"(,{"role":"assistant","content":""})", kLong) + "]}",
      R"({"messages":[{"role":"user","content":[)" + joined(R"({"type":"text","text":""})", kLong) +
          "]}]}",
      with_tools(R"({"description":")" + repeated("some words ", kLong) + R"("})"),
      with_tools(R"({"a":[)" + joined("{}", kLong / 4) + "]}"),
      with_tools(R"({"a":[)" + joined("0", kLong / 4) + "]}"),
      with_tools(R"({"properties":{"a":{"type":"string"})" +
                 [] {
                   std::string out;
                   for (int i = 0; i < 10'000; ++i)
                     out += ",\"" + std::to_string(i) + R"(":{"type":"string"})";
                   return out;
                 }() +
                 "}}"),
      with_arguments(R"({\"a\":[)" + joined("{}", kLong / 4) + "]}"),
      with_arguments(R"({\"a\":\")" + repeated("some words ", kLong) + R"(\"})"),
      R"({"messages":[)" + says("hi") +
          R"(,{"role":"assistant","tool_calls":"[{\"name\":\"f\",\"arguments\":{\"a\":[)" +
          joined("{}", kLong / 4) + R"(]}}]"}]})",
      R"({"messages":[)" + says("hi") +
          R"(,{"role":"function_call","content":"{\"name\":\"f\",\"arguments\":{\"a\":[)" +
          joined("0", kLong / 4) + R"(]}}"}]})",
      R"({"messages":[)" + says("hi") + R"(,{"role":"tool","content":{"a":[)" +
          joined("{}", kLong / 4) + "]}}]}",
  };
}

TEST(TextMemory, OfAChatIsToldBefore) {
  for (const std::string name : {"qwen3", "qwen36", "llama31", "mistral_v7", "deepseek_v3"}) {
    SCOPED_TRACE(name);
    ServedText text = bundled_text();
    const std::string path = STRATA_SOURCE_DIR "/tests/data/third_party/templates/";
    text.chat = text::ChatTemplate::parse(read_file(path + name + ".jinja", 1 << 20),
                                          R"({"bos_token":"<s>","eos_token":"</s>"})");
    for (const std::string& conversation : conversations()) {
      const text::JsonBody body(conversation, "chat");
      const Cost got = cost([&](const TakeMemory& take) {
        return read_chat(body.root(), text, long_base(), 1, take);
      });
      EXPECT_LE(got.taken, got.told + kUntold) << conversation.substr(0, 100) << got.fault;
    }
  }
}

TEST(TextMemory, OfACompletionIsToldBefore) {
  for (const std::string& prompt :
       {"\"" + repeated("some words ", kMiB / 4) + "\"", "\"" + repeated(" ", kMiB) + "\"",
        "\"" + repeated("some words ", 4 * kMiB) + "\"", "[" + joined("7", kMiB / 8) + "]",
        "[" + joined("\"a b c d e f g h\"", kMiB / 64) + "]"}) {
    const text::JsonBody body(R"({"max_tokens":1,"prompt":)" + prompt + "}", "completion");
    const Cost got = cost([&](const TakeMemory& take) {
      return read_completion(body.root(), bundled_text(), long_base(), 1, take);
    });
    EXPECT_LE(got.taken, got.told + kUntold) << prompt.substr(0, 40) << got.fault;
    EXPECT_TRUE(got.told > 0 || !got.fault.empty());
  }
}

// Of a text that is longer than the context no more is made than tells so.
TEST(TextMemory, OfATextThatDoesNotFitIsThatOfItsBeginning) {
  const text::JsonBody body(R"({"prompt":")" + repeated("some words ", 8 * kMiB) + R"("})",
                            "completion");
  const Cost got = cost([&](const TakeMemory& take) {
    return read_completion(body.root(), bundled_text(), bundled_base(), 1, take);
  });
  EXPECT_THAT(got.fault, HasSubstr("maximum context length is 600"));
  EXPECT_LE(got.taken, 10 * kMiB);
}

}  // namespace
}  // namespace strata::server
