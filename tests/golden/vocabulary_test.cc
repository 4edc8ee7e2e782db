// SPDX-License-Identifier: Apache-2.0
// Tokenizers of real models as keys of a GGUF file and back: the ids of 6,100 strings are those of
// the tokenizer.json, and `tokenizer.ggml.pre` is llama.cpp's name of its rules.
#include "checkpoint/gguf/vocabulary.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "base/error.h"
#include "checkpoint/gguf/gguf_file.h"
#include "checkpoint/source.h"
#include "tests/base/temp_dir.h"
#include "tests/text/golden.h"
#include "text/tokenizer/tokenizer.h"

namespace strata {
namespace {

struct Vocabulary {
  const char* name;
  const char* pre;
  const char* own_model = "";
};
void PrintTo(const Vocabulary& row, std::ostream* out) { *out << row.name << row.own_model; }

int64_t num_ids(const boost::json::value& tokenizer) {
  int64_t most = 0;
  for (const auto& [token, id] : tokenizer.at("model").at("vocab").as_object()) {
    most = std::max(most, id.as_int64());
  }
  for (const auto& token : tokenizer.at("added_tokens").as_array()) {
    most = std::max(most, token.at("id").as_int64());
  }
  return most + 1;
}

std::string write_file(const testing::TempDir& dir, int64_t num_rows, const char* own_model = "") {
  GgufHeader header;
  header.add_text("general.architecture", "llama");
  EXPECT_TRUE(add_vocabulary(ModelTexts(dir.file("")), num_rows, header, own_model));
  std::ofstream(dir.file("a.gguf"), std::ios::binary) << header.serialise();
  return dir.file("a.gguf");
}

class WrittenVocabulary : public ::testing::TestWithParam<Vocabulary> {};

TEST_P(WrittenVocabulary, EqualsTokenizerJson) {
  const std::string path =
      std::string(STRATA_SOURCE_DIR) + "/build/tokenizers/" + GetParam().name + ".json";
  if (!file_exists(path)) GTEST_SKIP() << path << " is not there";
  const testing::TempDir dir;
  std::filesystem::copy_file(path, dir.file("tokenizer.json"));
  const std::string text = read_file(path, text::Tokenizer::kMaxFileBytes);
  const boost::json::value json = boost::json::parse(text);
  const int64_t num_rows = num_ids(json) + 3;  // padding
  const std::string around = boost::json::serialize(json.at("post_processor"));
  std::string bos;
  for (const auto& token : json.at("added_tokens").as_array()) {
    const std::string content = text::text_of(token.at("content"));
    if (around.find("{\"id\":\"" + content + "\"") != around.npos) bos = content;
  }
  std::ofstream(dir.file("tokenizer_config.json"))
      << boost::json::serialize(boost::json::object{{"bos_token", bos}});
  const std::string file = write_file(dir, num_rows, GetParam().own_model);
  EXPECT_EQ(GgufFile(file).keys().text("tokenizer.ggml.pre", ""), GetParam().pre);
  const auto want = text::Tokenizer::parse(text, path);
  const auto got = text::Tokenizer::load(open_texts(file));
  for (const std::string& sample : text::read_samples()) {
    const std::vector<int32_t> ids = want.encode(sample, true);
    ASSERT_EQ(got.encode(sample, true), ids) << sample;
    ASSERT_EQ(got.decode(ids), want.decode(ids)) << sample;
    ASSERT_EQ(got.decode(ids, true), want.decode(ids, true)) << sample;
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, WrittenVocabulary,
    ::testing::Values(Vocabulary{"llama3", "dbrx"}, Vocabulary{"deepseek", "deepseek-v3"},
                      Vocabulary{"qwen3", "qwen2"}, Vocabulary{"qwen3.5", "qwen35"},
                      Vocabulary{"tekken", "tekken"}, Vocabulary{"smollm2", "smollm"},
                      Vocabulary{"mistral", "default"}, Vocabulary{"gemma3", "default"},
                      Vocabulary{"gemma3", "", "gemma4"}),
    [](const auto& info) {
      std::string name = std::string(info.param.name) + info.param.own_model;
      for (char& c : name) c = std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '_';
      return name;
    });

// "a bb" makes a token that no merge makes of it: by scores alone it would be joined.
TEST(WrittenVocabulary, MergesOfGemma4KeepTheirOrder) {
  const std::string tokenizer = R"({"added_tokens": [
      {"id": 7, "content": "<|channel>", "special": true},
      {"id": 8, "content": "<eos>", "special": true}],
      "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"},
      "pre_tokenizer": null, "post_processor": null, "decoder": {"type": "Sequence", "decoders": [
      {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "},
      {"type": "ByteFallback"}, {"type": "Fuse"}]},
      "model": {"type": "BPE", "unk_token": "<unk>", "fuse_unk": true, "byte_fallback": true,
      "vocab": {"<unk>": 0, "a": 1, "b": 2, "bb": 3, "ab": 4, "abb": 5, "\u2581": 6},
      "merges": ["b b", "a b", "ab b"]}})";
  const testing::TempDir dir;
  std::ofstream(dir.file("tokenizer.json")) << tokenizer;
  const auto ids = [&](const char* own_model) {
    const auto got = text::Tokenizer::load(open_texts(write_file(dir, 9, own_model)));
    return got.encode("abb ab", false);
  };
  EXPECT_EQ(text::Tokenizer::parse(tokenizer, "").encode("abb ab", false),
            (std::vector<int32_t>{1, 3, 6, 4}));
  EXPECT_EQ(ids("gemma4"), (std::vector<int32_t>{1, 3, 6, 4}));
  EXPECT_EQ(ids(""), (std::vector<int32_t>{5, 6, 4}));
  const auto got = text::Tokenizer::load(open_texts(write_file(dir, 9, "gemma4")));
  EXPECT_EQ(got.decode(std::vector<int32_t>{7, 4, 8}, true), "<|channel>ab");
  const GgufKeys keys = GgufFile(dir.file("a.gguf")).keys();
  EXPECT_EQ(keys.text("tokenizer.ggml.model"), "gemma4");
  EXPECT_EQ(keys.texts("tokenizer.ggml.merges").size(), 3U);
}

TEST(WrittenVocabulary, WhatLlamaCppHasNoRulesForIsRefused) {
  const auto fault = [](const std::string& tokenizer, int64_t num_rows) {
    const testing::TempDir dir;
    std::ofstream(dir.file("tokenizer.json")) << tokenizer;
    try {
      write_file(dir, num_rows);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  const auto with = [](const char* splits) {
    return std::string(R"({"added_tokens": [], "normalizer": null, "pre_tokenizer": )") + splits +
           R"(, "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"]}})";
  };
  const std::string plain =
      R"({"type": "ByteLevel", "add_prefix_space": false, "use_regex": true})";
  EXPECT_EQ(fault(with(plain.c_str()), 3), "");
  EXPECT_NE(fault(with(plain.c_str()), 2).find("has the id 2, the model's embedding 2 rows"),
            std::string::npos);
  EXPECT_NE(fault(with(R"({"type": "Whitespace"})"), 3).find("pre-tokenizer of type 'Whitespace'"),
            std::string::npos);
  EXPECT_NE(fault(with(R"({"type": "Sequence", "pretokenizers": [{"type": "Split", "pattern":
      {"Regex": "x+"}, "behavior": "Isolated"}, {"type": "ByteLevel", "use_regex": false}]})"),
                  3)
                .find("llama.cpp has no name for"),
            std::string::npos);
  // Of a row's pattern, cut otherwise than llama.cpp cuts.
  const std::pair<const char*, const char*> cuts[] = {
      {R"("Isolated", "invert": false)", ""},
      {R"("Contiguous", "invert": false)", "'Split' (Contiguous)"},
      {R"("Removed", "invert": true)", "'Split' (Removed)"},
      {R"("MergedWithNext")", "'Split' (MergedWithNext)"}};
  for (const auto& [behavior, wanted] : cuts) {
    const std::string splits = std::string(R"({"type": "Sequence", "pretokenizers": [{"type":
        "Split", "pattern": {"Regex": "\\p{N}"}, "behavior": )") +
                               behavior + "}, " + plain + "]}";
    const std::string what = fault(with(splits.c_str()), 3);
    EXPECT_TRUE(*wanted == '\0' ? what.empty() : what.find(wanted) != std::string::npos) << what;
  }
  const std::string behind = R"({"type": "Sequence", "pretokenizers": [)" + plain +
                             R"(, {"type": "Digits", "individual_digits": true}]})";
  EXPECT_NE(fault(with(behind.c_str()), 3).find("'Digits' behind ByteLevel"), std::string::npos);
  std::string twice = with(plain.c_str());
  twice.insert(twice.find("[]") + 1, R"({"id": 1, "content": "c"})");
  EXPECT_NE(fault(twice, 3).find("the id 1 has two tokens, 'b' and 'c'"), std::string::npos);
  EXPECT_NE(fault(R"({"model": {"type": "Unigram", "vocab": []}})", 3).find("type 'Unigram'"),
            std::string::npos);
  EXPECT_NE(fault("[]", 3).find("want a JSON object"), std::string::npos);
  for (const char* added : {"3", "{}", R"({"id": "3"})", R"({"id": 1.5})", "null"}) {
    std::string text = with(plain.c_str());
    text.insert(text.find("[]") + 1, added);
    EXPECT_NE(fault(text, 9).find("an added token without a whole id"), std::string::npos) << added;
  }
  for (const char* merge : {"[1, 2]", R"(["a"])", "7", R"(["a", null])", R"("a")"}) {
    std::string text = with(plain.c_str());
    text.replace(text.find(R"("a b")"), 5, merge);
    EXPECT_NE(fault(text, 9).find("a merge of another form"), std::string::npos) << merge;
  }
  EXPECT_NE(fault("{\"model\"", 3), "");
}

TEST(WrittenVocabulary, ChatTemplatesHaveNamesOfTheirOwn) {
  const auto fault = [](const std::string& templates) {
    const testing::TempDir dir;
    std::ofstream(dir.file("tokenizer.json"))
        << R"({"pre_tokenizer": {"type": "ByteLevel"}, "model": {"type": "BPE", "vocab": {"a": 0},
               "merges": []}})";
    std::ofstream(dir.file("tokenizer_config.json")) << R"({"chat_template": )" << templates << "}";
    try {
      write_file(dir, 3);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_EQ(fault(R"([{"name": "default", "template": "x"}, {"name": "tool", "template": "y"}])"),
            "");
  EXPECT_EQ(fault("7"), "");
  for (const char* list : {"[1]", "[{}]", R"([{"name": ""}])", R"([{"name": "a"}, {"name": "a"}])",
                           R"([{"name": 3}])"}) {
    EXPECT_NE(fault(list).find("without a name of its own"), std::string::npos) << list;
  }
}

}  // namespace
}  // namespace strata
