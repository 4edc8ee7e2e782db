// SPDX-License-Identifier: Apache-2.0
// Text from GGUF files: vocabularies of real models, written as llama.cpp's converter writes them,
// give the ids of the tokenizer.json that they were made of, on 6,100 strings. What is not known is
// refused with a list of what is.
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <cmath>
#include <fstream>
#include <map>

#include "apps/serve/memory.h"
#include "base/files.h"
#include "checkpoint/source.h"
#include "setup/text_stack.h"
#include "setup/weights_text.h"
#include "tests/base/temp_dir.h"
#include "tests/checkpoint/gguf_bytes.h"
#include "tests/text/golden.h"

namespace strata::apps {
namespace {

namespace json = boost::json;
using testing::GgufBytes;
using testing::raw;

// What tokenizers say of text as keys of a GGUF file. Scores fall with the id, as in
// SentencePiece's own files.
class VocabularyKeys {
 public:
  VocabularyKeys(const json::object& tokenizer, const std::string& pre) : pre_(pre) {
    const json::object& model = tokenizer.at("model").as_object();
    for (const auto& [token, id] : model.at("vocab").as_object()) {
      set(id.as_int64(), std::string(token), is_byte(token) ? kByte : kNormal);
    }
    const json::value* unknown = model.if_contains("unk_token");
    for (const json::value& token : tokenizer.at("added_tokens").as_array()) {
      std::string text(token.at("content").as_string());
      const bool special = token.at("special").as_bool();
      const bool is_unknown =
          unknown != nullptr && unknown->is_string() && unknown->as_string() == text;
      if (is_unknown) unknown_ = token.at("id").as_int64();
      set(token.at("id").as_int64(), text, is_unknown ? kUnknown : special ? kControl : kUser);
    }
    read_merges(model);
    read_template(tokenizer.at("post_processor"));
    const json::value& normalizer = tokenizer.at("normalizer");
    prefix_ = json::serialize(normalizer).find("Prepend") != std::string::npos;
  }

  [[nodiscard]] std::vector<std::string> keys() const {
    std::string tokens;
    std::string types;
    std::string scores;
    int64_t size = 0;
    for (const auto& [id, token] : tokens_) {
      for (; size < id; ++size) {
        tokens += testing::gguf_text("[PAD" + std::to_string(size) + "]");
        types += raw<int32_t>(5);
        scores += raw(kNoScore);
      }
      tokens += testing::gguf_text(token.first);
      types += raw<int32_t>(token.second);
      const auto score = scores_.find(token.first);
      scores += raw(score == scores_.end() ? kNoScore : score->second);
      ++size;
    }
    const auto count = static_cast<uint64_t>(size);
    std::vector<std::string> out = {
        testing::key_text("general.architecture", "llama"),
        testing::key_text("tokenizer.ggml.model", pre_.empty() ? "llama" : "gpt2"),
        testing::key_list("tokenizer.ggml.tokens", 8, count, tokens),
        testing::key_list("tokenizer.ggml.token_type", 5, count, types),
        flag("add_bos_token", bos_ >= 0)};
    if (bos_ >= 0) out.push_back(id("bos", bos_));
    if (unknown_ >= 0) out.push_back(id("unknown", unknown_));
    if (pre_.empty()) {
      out.push_back(testing::key_list("tokenizer.ggml.scores", 6, count, scores));
      out.push_back(flag("add_space_prefix", prefix_));
    } else {
      out.push_back(testing::key_text("tokenizer.ggml.pre", pre_));
      out.push_back(testing::key_list("tokenizer.ggml.merges", 8, num_merges_, merges_));
    }
    return out;
  }

 private:
  static constexpr float kNoScore = -1e9f;
  static constexpr int32_t kNormal = 1, kUnknown = 2, kControl = 3, kUser = 4, kByte = 6;

  static std::string flag(const std::string& name, bool value) {
    return testing::gguf_key("tokenizer.ggml." + name, 7, raw<uint8_t>(value ? 1 : 0));
  }
  static std::string id(const std::string& name, int64_t value) {
    return testing::key_u32("tokenizer.ggml." + name + "_token_id", static_cast<uint32_t>(value));
  }
  [[nodiscard]] bool is_byte(std::string_view token) const {
    return pre_.empty() && token.size() == 6 && token.starts_with("<0x");
  }
  void set(int64_t id, const std::string& text, int32_t type) { tokens_[id] = {text, type}; }

  void read_merges(const json::object& model) {
    for (const json::value& merge : model.at("merges").as_array()) {
      std::string pair;
      if (merge.is_string()) {
        pair = merge.as_string();
      } else {
        pair = std::string(merge.at(0).as_string()) + " " + std::string(merge.at(1).as_string());
      }
      merges_ += testing::gguf_text(pair);
      scores_.emplace(pair.substr(0, pair.find(' ')) + pair.substr(pair.find(' ') + 1),
                      -static_cast<float>(num_merges_));
      ++num_merges_;
    }
  }

  void read_template(const json::value& post) {
    if (!post.is_object()) return;
    if (post.as_object().contains("processors")) {
      for (const json::value& each : post.at("processors").as_array()) read_template(each);
    }
    if (post.at("type").as_string() != "TemplateProcessing") return;
    const json::object& first = post.at("single").at(0).as_object();
    if (!first.contains("SpecialToken")) return;
    const json::value& name = first.at("SpecialToken").at("id");
    bos_ = post.at("special_tokens").at(name.as_string()).at("ids").at(0).as_int64();
  }

  std::string pre_;
  std::map<int64_t, std::pair<std::string, int32_t>> tokens_;
  std::string merges_;
  std::map<std::string, float> scores_;
  uint64_t num_merges_ = 0;
  int64_t bos_ = -1;
  int64_t unknown_ = -1;
  bool prefix_ = false;
};

struct Vocabulary {
  const char* name;
  const char* pre;  // "": SentencePiece's form
};
void PrintTo(const Vocabulary& row, std::ostream* out) { *out << row.name; }

class GgufVocabulary : public ::testing::TestWithParam<Vocabulary> {};

TEST_P(GgufVocabulary, EqualsTokenizerJson) {
  const std::string path =
      std::string(STRATA_SOURCE_DIR) + "/build/tokenizers/" + GetParam().name + ".json";
  const std::string text = read_file(path, text::Tokenizer::kMaxFileBytes);
  const json::value tokenizer = json::parse(text);
  const testing::TempDir dir;
  GgufBytes bytes;
  bytes.keys = VocabularyKeys(tokenizer.as_object(), GetParam().pre).keys();
  std::ofstream(dir.file("a.gguf"), std::ios::binary) << bytes.bytes();
  const auto want = text::Tokenizer::parse(text, path);
  const auto got = text::Tokenizer::load(open_texts(dir.file("a.gguf")));
  int num_tokens = 0;
  for (const std::string& sample : text::read_samples()) {
    const std::vector<int32_t> ids = want.encode(sample, true);
    ASSERT_EQ(got.encode(sample, true), ids) << sample;
    ASSERT_EQ(got.decode(ids), want.decode(ids)) << sample;
    ASSERT_EQ(got.decode(ids, true), want.decode(ids, true)) << sample;
    num_tokens += static_cast<int>(ids.size());
  }
  EXPECT_GT(num_tokens, 50000);
}

INSTANTIATE_TEST_SUITE_P(
    All, GgufVocabulary,
    ::testing::Values(Vocabulary{"llama3", "llama-bpe"}, Vocabulary{"deepseek", "deepseek-v3"},
                      Vocabulary{"qwen3", "qwen2"}, Vocabulary{"qwen3.5", "qwen35"},
                      Vocabulary{"tekken", "tekken"}, Vocabulary{"smollm2", "smollm"},
                      Vocabulary{"mistral", ""}, Vocabulary{"gemma3", ""}),
    [](const auto& info) {
      std::string name = info.param.name;
      for (char& c : name) c = std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '_';
      return name;
    });

class GgufText : public ::testing::Test {
 protected:
  // A byte-level vocabulary of the letters a to z, with a control token and an end of turn.
  static std::vector<std::string> keys() {
    std::string tokens;
    std::string types;
    for (char c = 'a'; c <= 'z'; ++c) {
      tokens += testing::gguf_text(std::string(1, c));
      types += raw<int32_t>(1);
    }
    for (const char* token : {"ab", "<s>", "</s>", "<|eot|>", "<think>"}) {
      tokens += testing::gguf_text(token);
    }
    types +=
        raw<int32_t>(1) + raw<int32_t>(3) + raw<int32_t>(3) + raw<int32_t>(3) + raw<int32_t>(4);
    return {testing::key_text("general.architecture", "llama"),
            testing::key_text("tokenizer.ggml.model", "gpt2"),
            testing::key_list("tokenizer.ggml.tokens", 8, 31, tokens),
            testing::key_list("tokenizer.ggml.token_type", 5, 31, types),
            testing::key_list("tokenizer.ggml.merges", 8, 1, testing::gguf_text("a b")),
            testing::key_u32("tokenizer.ggml.bos_token_id", 27),
            testing::key_u32("tokenizer.ggml.eos_token_id", 28),
            testing::key_u32("tokenizer.ggml.eot_token_id", 29),
            testing::key_text("tokenizer.chat_template",
                              "{{ bos_token }}{% for m in messages %}{{ m.content }}<|eot|>"
                              "{% endfor %}")};
  }
  std::string write(std::vector<std::string> keys) {
    GgufBytes bytes;
    bytes.keys = std::move(keys);
    std::ofstream(dir_.file("a.gguf"), std::ios::binary) << bytes.bytes();
    return dir_.file("a.gguf");
  }
  std::string fault(std::vector<std::string> keys) {
    const std::string path = write(std::move(keys));
    return testing::error_of([&] { const TextStack text(path); });
  }

  testing::TempDir dir_;
};

TEST_F(GgufText, SpecialTokensEndsAndTheTemplateAreRead) {
  auto all = keys();
  all.push_back(testing::key_text("tokenizer.ggml.pre", "llama-bpe"));
  const TextStack text(write(all));
  EXPECT_EQ(text.tokenizer().encode("abc<|eot|>", true), (std::vector<int32_t>{27, 26, 2, 29}));
  EXPECT_TRUE(text.tokenizer().is_special(29));
  EXPECT_FALSE(text.tokenizer().is_special(30));  // user-defined
  EXPECT_EQ(text.tokenizer().encode("<think>"), (std::vector<int32_t>{30}));
  EXPECT_EQ(text.end_tokens().append, 28);
  EXPECT_EQ(text.end_tokens().stop, (std::vector<int32_t>{28, 29}));
  EXPECT_EQ(text.render({.messages = R"([{"role": "user", "content": "hi"}])"}), "<s>hi<|eot|>");
}

// What a file does not say of begin and end.
TEST_F(GgufText, DefaultsOfBeginAndEndAreLlamaCpps) {
  for (const auto& [pre, adds] : {std::pair{"llama-bpe", true},
                                  {"tekken", true},
                                  {"qwen2", false},
                                  {"smollm", false},
                                  {"gpt-4o", false}}) {
    auto all = keys();
    all.push_back(testing::key_text("tokenizer.ggml.pre", pre));
    const TextStack text(write(all));
    EXPECT_EQ(text.tokenizer().encode("c", true).size(), adds ? 2u : 1u) << pre;
  }
}

TEST_F(GgufText, WhatIsNotKnownIsRefusedWithAList) {
  auto all = keys();
  EXPECT_NE(fault(all).find("tokenizer.ggml.pre: got none, known are llama-bpe"),
            std::string::npos);
  all.push_back(testing::key_text("tokenizer.ggml.pre", "jais-2"));
  const std::string unknown = fault(all);
  EXPECT_NE(unknown.find("got 'jais-2', known are"), std::string::npos) << unknown;
  EXPECT_NE(unknown.find("gpt-4o"), std::string::npos);
  all = keys();
  all[1] = testing::key_text("tokenizer.ggml.model", "t5");
  EXPECT_NE(fault(all).find("got 't5', supported are gpt2"), std::string::npos);
}

// Some converters write llama.cpp's -1, in 32 bits, where there is no such token.
TEST_F(GgufText, AnIdOfMinusOneIsNoToken) {
  auto all = keys();
  all.push_back(testing::key_text("tokenizer.ggml.pre", "llama-bpe"));
  all[5] = testing::key_u32("tokenizer.ggml.bos_token_id", 0xffffffff);
  const TextStack text(write(all));
  EXPECT_EQ(text.tokenizer().encode("c", true).size(), 1u);
}

TEST_F(GgufText, ScoresThatAreNoNumbersAreRefused) {
  auto all = keys();
  all[1] = testing::key_text("tokenizer.ggml.model", "llama");
  std::string scores;
  for (int i = 0; i < 31; ++i) scores += raw(i == 7 ? std::nanf("") : 0.0f);
  all.push_back(testing::key_list("tokenizer.ggml.scores", 6, 31, scores));
  EXPECT_NE(fault(all).find("tokenizer.ggml.scores': a score is no number"), std::string::npos);
}

TEST_F(GgufText, FaultsOfVocabulariesAreNamed) {
  const auto with = [](size_t at, const std::string& key) {
    auto all = keys();
    all.push_back(testing::key_text("tokenizer.ggml.pre", "qwen2"));
    all[at] = key;
    return all;
  };
  EXPECT_NE(fault(with(5, testing::key_u32("tokenizer.ggml.bos_token_id", 31)))
                .find("got 31, the vocabulary has 31"),
            std::string::npos);
  EXPECT_NE(fault(with(3, testing::key_list("tokenizer.ggml.token_type", 5, 1, raw<int32_t>(1))))
                .find("1 types of 31 tokens"),
            std::string::npos);
  EXPECT_NE(
      fault(with(4, testing::key_list("tokenizer.ggml.merges", 8, 1, testing::gguf_text("a zz"))))
          .find("'zz' is not in model.vocab"),
      std::string::npos);
  EXPECT_NE(
      fault(with(2, testing::key_list("tokenizer.ggml.tokens", 8, 1, testing::gguf_text("\xff"))))
          .find("types of 1 tokens"),
      std::string::npos);
}

// Weights in few bits are held against a server's memory as what they become, before they are read.
TEST_F(GgufText, ServersCountDequantisedWeights) {
  GgufBytes bytes;
  bytes.keys = keys();
  for (const char* key : {"block_count", "embedding_length", "attention.head_count"}) {
    bytes.keys.push_back(testing::key_u32(std::string("llama.") + key, 32));
  }
  bytes.tensors = {{"token_embd.weight", {64, 1000}, 2, std::string(18 * 2000, '\0')}};
  testing::write_bytes(dir_.file("a.gguf"), bytes.bytes());
  const std::string paths[] = {dir_.file("a.gguf")};
  check_weights_fit(paths, 2 * 64 * 1000);
  const std::string fault = testing::error_of([&] { check_weights_fit(paths, 2 * 64 * 1000 - 1); });
  EXPECT_NE(fault.find("memory: at least 125 KiB are needed"), std::string::npos) << fault;
  EXPECT_NE(dequantised_text(open_checkpoint(paths[0]).get()).find("125 KiB in bf16"),
            std::string::npos);
}

}  // namespace
}  // namespace strata::apps
