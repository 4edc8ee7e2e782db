// SPDX-License-Identifier: Apache-2.0
// What transformers and jinja2 render: 700 conversations through sixteen templates, and snippets
// that try one construct each, faults included.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "tests/text/golden.h"
#include "text/chat_template.h"
#include "text/jinja/value.h"

namespace strata::text {
namespace {

constexpr char kTokens[] = R"({"bos_token":"<s>","eos_token":{"content":"</s>"}})";

ChatRequest request_of(const Dict& line) {
  const auto json = [&](std::string_view key) {
    const Value* value = line.find(key);
    return value == nullptr ? std::string() : to_json(*value, {});
  };
  ChatRequest request{.messages = json("messages"), .tools = json("tools"), .vars = json("vars")};
  request.add_generation_prompt = line.find(std::string_view("add_generation_prompt"))->truthy();
  request.now = "2026-01-31";
  return request;
}

std::string render_hash(const ChatTemplate& chat, const ChatRequest& request) {
  try {
    char buffer[32];
    std::snprintf(buffer, sizeof(buffer), "%016llx",
                  static_cast<unsigned long long>(fnv(chat.render(request))));
    return buffer;
  } catch (const Error&) {
    return "error";
  }
}

TEST(ChatTemplateGolden, ConversationsEqualTransformers) {
  std::vector<std::pair<std::string, ChatTemplate>> templates;
  const auto add = [&](const std::string& folder, const std::string& name) {
    const std::string path = std::string(STRATA_SOURCE_DIR) + "/tests/data/" + folder + name;
    templates.emplace_back(name, ChatTemplate::parse(read_file(path + ".jinja", 1 << 20), kTokens));
  };
  for (const char* name : {"llama2", "llama31", "qwen25", "qwen3", "qwen35", "qwen35_nothink",
                           "qwen36", "qwen38", "smollm2", "deepseek_v3", "mistral_v1", "mistral_v3",
                           "mistral_tekken", "mistral_v7", "gptoss"})
    add("third_party/templates/", name);
  add("text/templates/", "gemma3");
  // Not Boost.JSON: its numbers are not rounded correctly.
  const std::string lines = read_file(golden_path("conversations.jsonl"), 1 << 26);
  int num_rendered = 0;
  int num_errors = 0;
  for (size_t pos = 0; pos < lines.size();) {
    const size_t end = lines.find('\n', pos);
    const Value line = Value::from_json(std::string_view(lines).substr(pos, end - pos), "golden");
    pos = end + 1;
    const ChatRequest request = request_of(line.as_dict());
    const Dict& expect = line.as_dict().find(std::string_view("expect"))->as_dict();
    for (const auto& [name, chat] : templates) {
      const std::string& wanted = expect.find(std::string_view(name))->text();
      EXPECT_EQ(render_hash(chat, request), wanted) << name << ": " << request.messages;
      ++(wanted == "error" ? num_errors : num_rendered);
    }
  }
  EXPECT_EQ(num_rendered + num_errors, 11200);
  EXPECT_GT(num_rendered, 5000);
  EXPECT_GT(num_errors, 4500);
}

// Every template that trl carries, of three dozen models, from its wheel (build/tokenizers/trl):
// one hash of all that it renders of every fifth conversation (tools/golden/make_trl_templates.py).
TEST(ChatTemplateGolden, TemplatesOfTrlEqualTransformers) {
  std::vector<ChatRequest> requests;
  const std::string lines = read_file(golden_path("conversations.jsonl"), 1 << 26);
  int64_t number = 0;
  for (size_t pos = 0; pos < lines.size(); ++number) {
    const size_t end = lines.find('\n', pos);
    if (number % 5 == 0) {
      const Value line = Value::from_json(std::string_view(lines).substr(pos, end - pos), "golden");
      requests.push_back(request_of(line.as_dict()));
    }
    pos = end + 1;
  }
  int num_templates = 0;
  for (const auto& row : read_lines("trl_templates.jsonl")) {
    const std::string name = text_of(row.at("template"));
    const ChatTemplate chat = ChatTemplate::parse(
        read_file(std::string(STRATA_TOKENIZERS) + "/trl/" + name + ".jinja", 1 << 20), kTokens);
    std::string all;
    int64_t errors = 0;
    for (const ChatRequest& request : requests) {
      const std::string hash = render_hash(chat, request);
      errors += static_cast<int64_t>(hash == "error");
      all += (all.empty() ? "" : "\n") + hash;
    }
    EXPECT_EQ(errors, row.at("errors").as_int64()) << name;
    EXPECT_EQ(fmt::format("{:016x}", fnv(all)), text_of(row.at("hash"))) << name;
    ++num_templates;
  }
  EXPECT_GE(num_templates, 70);
}

TEST(ChatTemplateGolden, SnippetsEqualJinja2) {
  const std::string vars = read_file(golden_path("snippet_vars.json"), 1 << 20);
  for (const auto& line : read_lines("snippets.jsonl")) {
    const std::string source = text_of(line.at("template"));
    SCOPED_TRACE(source);
    const bool fails = line.as_object().contains("error");
    try {
      const std::string text = ChatTemplate::parse(source, kTokens)
                                   .render({.messages = R"([{"role":"user","content":"hi"}])",
                                            .vars = vars,
                                            .now = "2026-01-31"});
      if (fails) {
        ADD_FAILURE() << "got '" << text << "', wanted an error: " << text_of(line.at("error"));
      } else {
        EXPECT_EQ(text, text_of(line.at("text")));
      }
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("chat template: line "), std::string::npos)
          << error.what();
      if (!fails)
        ADD_FAILURE() << "got an error: " << error.what() << "\nwanted " << line.at("text");
    }
  }
}

}  // namespace
}  // namespace strata::text
