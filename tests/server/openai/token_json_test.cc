// SPDX-License-Identifier: Apache-2.0
#include "server/openai/token_json.h"

#include <gtest/gtest.h>

#include <boost/json.hpp>

#include "tests/text/tiny_tokenizer.h"

namespace strata::server {
namespace {

// The bytes of a text's tokens, as a chat's logprobs tell them.
std::string told_bytes(const text::Tokenizer& tokenizer, const std::string& text) {
  const std::vector<int32_t> ids = tokenizer.encode(text);
  const std::vector<float> logprobs(ids.size(), -1.0f);
  const boost::json::value items =
      boost::json::parse(chat_logprob_items(tokenizer, {ids, logprobs, {}}).text());
  std::string out;
  for (const boost::json::value& item : items.as_array()) {
    for (const boost::json::value& byte : item.at("bytes").as_array())
      out += static_cast<char>(byte.as_int64());
  }
  return out;
}

TEST(TokenJson, TokensHaveTheirBytes) {
  const auto byte_level = text::Tokenizer::parse(text::tiny_byte_level_json(), "tiny");
  EXPECT_EQ(told_bytes(byte_level, "the \U0001F601 e\u00e9"), "the \U0001F601 e\u00e9");
  EXPECT_EQ(token_text(byte_level, byte_level.encode("\U0001F601").front()), "\\xf0\\x9f\\x98");
  EXPECT_EQ(token_text(byte_level, -1), "");
  EXPECT_EQ(token_text(byte_level, 1 << 20), "");
  const auto pieces = text::Tokenizer::parse(text::tiny_sentencepiece_json(), "tiny");
  EXPECT_EQ(told_bytes(pieces, "the \u00e9\U0001F601"), " the \u00e9\U0001F601");
}

TEST(TokenJson, LogprobsKeepTheirBits) {
  const auto tokenizer = text::Tokenizer::parse(text::tiny_byte_level_json(), "tiny");
  const std::vector<int32_t> ids = {40, 41};
  const std::vector<float> logprobs = {-0.1f, api::kNoLogprob};
  const api::TopkTable topk = {
      .ids = {40, 0, 41, 42}, .logprobs = {-0.1f, api::kNoTopk, -1.5f, -2.0f}, .k = 2};
  CompletionLogprobs completion;
  completion.add_tokens(tokenizer, {ids, logprobs, topk});
  const boost::json::value told = boost::json::parse(completion.take_json().text());
  EXPECT_EQ(told.at("token_logprobs").at(0).as_double(), static_cast<double>(-0.1f));
  EXPECT_TRUE(told.at("token_logprobs").at(1).is_null());
  EXPECT_EQ(told.at("top_logprobs").at(0).as_object().size(), 1u);
  EXPECT_EQ(told.at("text_offset").at(1), 1);
  EXPECT_EQ(completion.take_json().text(),
            R"({"tokens":[],"token_logprobs":[],"top_logprobs":[],"text_offset":[]})");
}

}  // namespace
}  // namespace strata::server
