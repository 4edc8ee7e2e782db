// SPDX-License-Identifier: Apache-2.0
// DeepSeek-V4's conversations beside the encoder that its checkpoints ship
// (tools/golden/make_deepseek_v4_chat.py).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>

#include "base/error.h"
#include "tests/base/temp_dir.h"
#include "tests/text/golden.h"
#include "text/chat_template.h"
#include "text/jinja/value.h"

namespace strata::text {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;

ChatTemplate load_built_in() {
  testing::TempDir dir;
  testing::write_bytes(dir.file("config.json"), R"({"model_type": "deepseek_v4"})");
  return ChatTemplate::load(dir.path()).value();
}

std::string hash_text(const std::string& text) {
  char buffer[32];
  std::snprintf(buffer, sizeof(buffer), "fnv:%016llx", static_cast<unsigned long long>(fnv(text)));
  return buffer;
}

std::string message_of(const ChatTemplate& chat, const ChatRequest& request) {
  try {
    return "no error: " + chat.render(request);
  } catch (const Error& error) {
    return error.what();
  }
}

TEST(DeepseekV4Chat, EqualsTheEncoder) {
  const ChatTemplate chat = load_built_in();
  const std::string lines = read_file(golden_path("deepseek_v4_chat.jsonl"), 1 << 26);
  int num_texts = 0, num_hashes = 0, num_faults = 0;
  for (size_t pos = 0; pos < lines.size();) {
    const size_t end = lines.find('\n', pos);
    const Value value = Value::from_json(std::string_view(lines).substr(pos, end - pos), "golden");
    pos = end + 1;
    const Dict& line = value.as_dict();
    const auto json = [&](std::string_view key) {
      const Value* found = line.find(key);
      return found == nullptr ? std::string() : to_json(*found, {});
    };
    const ChatRequest request{.messages = json("messages"),
                              .tools = json("tools"),
                              .vars = json("vars"),
                              .add_generation_prompt = true};
    const Value& expect = *line.find(std::string_view("expect"));
    std::string got;
    try {
      got = chat.render(request);
    } catch (const Error& error) {
      EXPECT_TRUE(expect.is_none()) << request.messages << "\n" << error.what();
      ++num_faults;
      continue;
    }
    if (expect.is_none()) {
      ADD_FAILURE() << "wanted an error: " << request.messages;
      continue;
    }
    const bool is_hash = expect.text().starts_with("fnv:");
    EXPECT_EQ(is_hash ? hash_text(got) : got, expect.text()) << request.messages;
    ++(is_hash ? num_hashes : num_texts);
  }
  EXPECT_EQ(num_texts + num_hashes + num_faults, 300);
  EXPECT_GT(num_texts, 50);
  EXPECT_GT(num_hashes, 50);
  EXPECT_GT(num_faults, 30);
}

TEST(DeepseekV4Chat, TheAnswerBeginsWhereItIsAskedFor) {
  const ChatTemplate chat = load_built_in();
  ChatRequest request{.messages = R"([{"role": "user", "content": "q"}])"};
  const std::string question = chat.render(request);
  EXPECT_THAT(question, EndsWith("<\uff5cUser\uff5c>q"));
  request.add_generation_prompt = true;
  EXPECT_EQ(chat.render(request), question + "<\uff5cAssistant\uff5c></think>");
  request.vars = R"({"thinking": true})";
  EXPECT_EQ(chat.render(request), question + "<\uff5cAssistant\uff5c><think>");
}

TEST(DeepseekV4Chat, FaultsNameTheirPlace) {
  const ChatTemplate chat = load_built_in();
  EXPECT_THAT(message_of(chat, {.messages = R"([{"role": "user", "content": ["x"]}])"}),
              HasSubstr("messages[0].content: got list, wanted a text"));
  EXPECT_THAT(message_of(chat, {.messages = R"([{"role": "user"}, {"role": "oracle"}])"}),
              HasSubstr("messages[1].role: got 'oracle'"));
  EXPECT_THAT(message_of(chat, {.messages = R"([{"role": "user", "content": "x"}])",
                                .vars = R"({"reasoning_effort": "low"})"}),
              HasSubstr("reasoning_effort: wanted 'max' or 'high'"));
  EXPECT_THAT(message_of(chat, {.messages = R"([{"role": "assistant", "tool_calls": [{}]}])"}),
              HasSubstr("messages[0].tool_calls: wanted objects with a member `function`"));
}

TEST(DeepseekV4Chat, AFileOfTheDirectoryWins) {
  testing::TempDir dir;
  testing::write_bytes(dir.file("config.json"), R"({"model_type": "deepseek_v4"})");
  testing::write_bytes(dir.file("chat_template.jinja"), "mine");
  EXPECT_EQ(ChatTemplate::load(dir.path())->render({.messages = R"([{"role": "user"}])"}), "mine");
  testing::TempDir other;
  testing::write_bytes(other.file("config.json"), R"({"model_type": "llama"})");
  EXPECT_FALSE(ChatTemplate::load(other.path()).has_value());
}

}  // namespace
}  // namespace strata::text
