// SPDX-License-Identifier: Apache-2.0
// Tokenizers as transformers saves them (tools/golden/make_saved_tokenizers.py): truncated, padded,
// with more tokens, with a begin and an end token, with a template, in older forms. Their ids,
// texts and renders are those of transformers on the saved folder.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>

#include "tests/base/temp_dir.h"
#include "tests/text/golden.h"
#include "text/chat_template.h"
#include "text/tokenizer/tokenizer.h"

namespace strata::text {
namespace {

namespace json = boost::json;

constexpr const char* kChat =
    R"([{"role":"system","content":"Be brief."},{"role":"user","content":"Hi"},)"
    R"({"role":"assistant","content":"Hello"},{"role":"user","content":"Bye"}])";

// As the tool takes them.
std::vector<std::string> texts_of_golden() {
  const std::vector<std::string> samples = read_samples();
  std::vector<std::string> texts;
  for (size_t i = 0; i < samples.size(); i += 61) texts.push_back(samples[i]);
  for (const char* text : {"a <my_tool>newword b", "x  LEFT RIGHT  y", "WORD, SWORD WORDS",
                           "AsItIs as AsItIs", "<|x|> <|y|>", "<pad!>"})
    texts.emplace_back(text);
  return texts;
}

json::value merge_in_form(const json::value& merge, bool as_text) {
  if (merge.is_string() == as_text) return merge;
  if (!as_text) {
    const std::string text = text_of(merge);
    const size_t space = text.find(' ');
    return json::array{text.substr(0, space), text.substr(space + 1)};
  }
  return json::value(text_of(merge.at(0)) + " " + text_of(merge.at(1)));
}

// The saved file: the one that it was made of, with what the row says.
json::object saved_json(const json::object& base, const json::object& row) {
  json::object saved = base;
  for (const auto& [key, value] : row.at("set").as_object()) saved[key] = value;
  json::object model = row.at("model").as_object();
  model["vocab"] = base.at("model").at("vocab");
  json::array& merges = model["merges"].emplace_array();
  for (const json::value& merge : base.at("model").at("merges").as_array())
    merges.push_back(merge_in_form(merge, row.at("merges") == "texts"));
  saved["model"] = std::move(model);
  const json::value& change = row.at("added_tokens");
  std::map<int64_t, json::value> added;  // by id, as they stand in the file
  for (const json::value& token : base.at("added_tokens").as_array())
    added[token.at("id").as_int64()] = token;
  for (const json::value& id : change.at("dropped").as_array()) added.erase(id.as_int64());
  for (const json::value& token : change.at("new").as_array())
    added[token.at("id").as_int64()] = token;
  json::array& tokens = saved["added_tokens"].emplace_array();
  for (const auto& [id, token] : added) tokens.push_back(token);
  return saved;
}

std::string hex(uint64_t value) {
  char text[17];
  std::snprintf(text, sizeof(text), "%016lx", value);
  return text;
}

void expect_equal_renders(const json::object& row) {
  const strata::testing::TempDir dir;
  const std::string source = read_file(
      std::string(STRATA_SOURCE_DIR) + "/tests/data/third_party/templates/qwen3.jinja", 1 << 20);
  json::object config = row.at("config").as_object();
  if (row.at("has_jinja").as_bool()) {
    std::ofstream(dir.file("chat_template.jinja")) << source;
  } else {
    config["chat_template"] = source;
  }
  std::ofstream(dir.file("tokenizer_config.json")) << json::serialize(config);
  const auto chat = ChatTemplate::load(ModelTexts(dir.path()));
  ASSERT_TRUE(chat);
  EXPECT_EQ(hex(fnv(chat->render({.messages = kChat, .add_generation_prompt = true}))),
            text_of(row.at("rendered")));
}

class SavedTokenizer : public ::testing::TestWithParam<const char*> {};

TEST_P(SavedTokenizer, EqualsTransformers) {
  const std::string path = std::string(STRATA_TOKENIZERS) + "/" + GetParam() + ".json";
  const json::object base = json::parse(read_file(path, 1 << 28)).as_object();
  const std::vector<std::string> texts = texts_of_golden();
  int num_forms = 0;
  for (const json::value& line : read_lines("saved_tokenizers.jsonl")) {
    const json::object& row = line.as_object();
    if (row.at("tokenizer") != GetParam()) continue;
    const std::string title = text_of(row.at("class")) + ", " + text_of(row.at("form"));
    SCOPED_TRACE(title);
    const Tokenizer tokenizer = Tokenizer::parse(json::serialize(saved_json(base, row)), title);
    uint64_t ids = fnv(""), decoded = fnv("");
    for (const std::string& text : texts) {
      const auto special = tokenizer.encode(text, true);
      ids = fnv(ids_bytes(tokenizer.encode(text)) + "|" + ids_bytes(special), ids);
      for (const bool skip : {false, true})
        decoded = fnv(tokenizer.decode(special, skip) + '\0', decoded);
    }
    EXPECT_EQ(hex(ids), text_of(row.at("ids")));
    EXPECT_EQ(hex(decoded), text_of(row.at("decoded")));
    if (row.contains("rendered")) expect_equal_renders(row);
    ++num_forms;
  }
  EXPECT_GE(num_forms, 12);
}

INSTANTIATE_TEST_SUITE_P(All, SavedTokenizer,
                         ::testing::Values("llama3", "deepseek", "qwen3", "qwen2.5", "qwen3.5",
                                           "mistral", "mistral-metaspace", "mistral-v3", "tekken",
                                           "gemma3", "smollm2"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::erase_if(name, [](char c) { return c == '-' || c == '.'; });
                           return name;
                         });

}  // namespace
}  // namespace strata::text
