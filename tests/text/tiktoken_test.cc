// SPDX-License-Identifier: Apache-2.0
// Kimi's tiktoken.model: the ids of tiktoken itself, and files that are wrong.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <optional>

#include "base/error.h"
#include "base/files.h"
#include "base/model_texts.h"
#include "tests/text/golden.h"
#include "text/tokenizer/tokenizer.h"

namespace strata::text {
namespace {

using testing::HasSubstr;

std::map<std::string, std::string> files() {
  std::map<std::string, std::string> out;
  for (const char* name : {"tiktoken.model", "tokenizer_config.json"})
    out[name] = read_file(golden_path(std::string("kimi/") + name), 1 << 20);
  return out;
}

ModelTexts texts_of(std::map<std::string, std::string> files) {
  return {"dir", [files = std::move(files)](std::string_view name) -> std::optional<std::string> {
            const auto found = files.find(std::string(name));
            if (found == files.end()) return std::nullopt;
            return found->second;
          }};
}

// Of the files, once `change` has been at one of them.
std::string fault_of(const std::string& name, const std::function<void(std::string&)>& change) {
  std::map<std::string, std::string> all = files();
  change(all[name]);
  try {
    static_cast<void>(Tokenizer::load(texts_of(all)));
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

std::string fault_of_ranks(const std::function<void(std::string&)>& change) {
  return fault_of("tiktoken.model", change);
}

void replace(std::string& text, const std::string& old, const std::string& with) {
  const size_t at = text.find(old);
  ASSERT_NE(at, std::string::npos) << old;
  text.replace(at, old.size(), with);
}

TEST(Tiktoken, HasTiktokensIds) {
  const Tokenizer tokenizer = Tokenizer::load(texts_of(files()));
  const auto lines = read_lines("kimi/ids.jsonl");
  ASSERT_GE(lines.size(), 400u);
  for (const auto& line : lines) {
    const std::string text = text_of(line.at("text"));
    std::vector<int32_t> ids;
    for (const auto& id : line.at("ids").as_array())
      ids.push_back(static_cast<int32_t>(id.as_int64()));
    ASSERT_EQ(tokenizer.encode(text), ids) << text;
    ASSERT_EQ(tokenizer.decode(ids), text);
  }
}

TEST(Tiktoken, HasSpecialTokensBehindThoseOfTheFile) {
  const Tokenizer tokenizer = Tokenizer::load(texts_of(files()));
  EXPECT_EQ(tokenizer.vocab_size(), 657 + 256);
  EXPECT_EQ(tokenizer.token_to_id("[BOS]"), 657);
  EXPECT_TRUE(tokenizer.is_special(657));
  EXPECT_EQ(tokenizer.id_to_token(662), "<|reserved_token_662|>");
  const std::vector<int32_t> ids = tokenizer.encode("[BOS]a<|im_middle|>b<|im_end|>");
  EXPECT_EQ(tokenizer.decode(ids, /*skip_special=*/true), "a<|im_middle|>b");
}

TEST(Tiktoken, ATokenizerJsonGoesBeforeIt) {
  auto all = files();
  all["tokenizer.json"] = "{";
  EXPECT_THROW(static_cast<void>(Tokenizer::load(texts_of(all))), Error);
  EXPECT_FALSE(Tokenizer::find(texts_of({})).has_value());
}

TEST(Tiktoken, WrongLinesAreNamed) {
  EXPECT_THAT(fault_of_ranks([](auto& t) { replace(t, "AQ== 1\n", "AQ==\n"); }),
              HasSubstr("dir: tiktoken.model: line 2: got no space"));
  for (const char* no_base64 : {"AQ= 1\n", "A*== 1\n", "AR== 1\n", "A=Q= 1\n", " 1\n"}) {
    EXPECT_THAT(fault_of_ranks([&](auto& t) { replace(t, "AQ== 1\n", no_base64); }),
                HasSubstr("line 2: got a token that is no base64"))
        << no_base64;
  }
  for (const char* no_id : {"AQ== -1\n", "AQ== 1x\n", "AQ== \n", "AQ== 4000000\n", "AQ== 1 2\n"}) {
    EXPECT_THAT(fault_of_ranks([&](auto& t) { replace(t, "AQ== 1\n", no_id); }),
                HasSubstr("line 2: got an id that is no whole number below"))
        << no_id;
  }
  EXPECT_THAT(fault_of_ranks([](auto& t) { replace(t, "AQ== 1\n", "AA== 1\n"); }),
              HasSubstr("line 2: the token of id 0 again, with the id 1"));
  EXPECT_THAT(fault_of_ranks([](auto& t) { replace(t, "AQ== 1\n", "AQ== 0\n"); }),
              HasSubstr("line 2: the id 0 again, of another token"));
  EXPECT_THAT(fault_of_ranks([](auto& t) { t += std::string(1400, 'A') + " 657\n"; }),
              HasSubstr("line 658: a token of 1050 bytes, at most 1024 are read"));
}

TEST(Tiktoken, AFileThatIsCutIsNamed) {
  EXPECT_THAT(fault_of_ranks([](auto& t) { replace(t, "AQ== 1\n", ""); }),
              HasSubstr("there is no token of id 1; is a line lost?"));
  EXPECT_THAT(fault_of_ranks([](auto& t) { t.resize(t.find("/w== 255")); }),
              HasSubstr("there is no token of the byte ff alone; is the file cut?"));
  EXPECT_THAT(fault_of_ranks([](auto& t) { t.clear(); }), HasSubstr("the byte 00 alone"));
  // Ends of lines as on Windows, and none at the end of the file, are as good.
  EXPECT_EQ(fault_of_ranks([](auto& t) {
              replace(t, "AQ== 1\n", "AQ== 1\r\n\n");
              t.pop_back();
            }),
            "no error");
}

TEST(Tiktoken, WhatTheConfigSaysMustBeKnown) {
  const auto fault = [](const std::string& old, const std::string& with) {
    return fault_of("tokenizer_config.json", [&](auto& t) { replace(t, old, with); });
  };
  EXPECT_THAT(fault("TikTokenTokenizer", "QWenTokenizer"), HasSubstr("'QWenTokenizer'"));
  EXPECT_THAT(fault("\"657\"", "\"656\""), HasSubstr("got the id '656', want 657 to 914"));
  EXPECT_THAT(fault("\"657\"", "\"915\""), HasSubstr("got the id '915', want 657 to 914"));
  EXPECT_THAT(fault("[EOS]", "[BOS]"), HasSubstr("'[BOS]' has the ids 657 and 658"));
  EXPECT_THAT(fault("\"lstrip\": false", "\"lstrip\": true"), HasSubstr("'lstrip' of '[BOS]'"));
  EXPECT_THAT(fault("\"content\": \"[BOS]\"", "\"content\": \"\""), HasSubstr("got 0 bytes"));
  EXPECT_THAT(fault_of("tokenizer_config.json", [](auto& t) { t = "{"; }),
              HasSubstr("dir: tokenizer_config.json"));
}

}  // namespace
}  // namespace strata::text
