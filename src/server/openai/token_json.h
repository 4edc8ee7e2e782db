// SPDX-License-Identifier: Apache-2.0
// Tokens and their logprobs as the two forms of answers tell them. Logprobs keep their bits.
#pragma once
#include <cstdint>
#include <span>
#include <string>

#include "api/result.h"
#include "server/http/message.h"
#include "text/tokenizer/tokenizer.h"

namespace strata::server {

// Tokens in a row, and of each the most likely ones where these were asked.
struct EmittedTokens {
  std::span<const int32_t> tokens;
  std::span<const float> logprobs;  // as tokens; not finite: there is none
  const api::TopkTable& topk;
};

// Bytes that are no whole characters are written as \xNN.
std::string token_text(const text::Tokenizer& tokenizer, int32_t token);

// A chat's logprobs.content: of each token {token, logprob, bytes, top_logprobs}.
JsonArray chat_logprob_items(const text::Tokenizer& tokenizer, const EmittedTokens& told);

// A completion's logprobs, in pieces that follow one another.
class CompletionLogprobs {
 public:
  void add_tokens(const text::Tokenizer& tokenizer, const EmittedTokens& told);
  // {tokens, token_logprobs, top_logprobs, text_offset} of what was added since the last call.
  Json take_json();

 private:
  JsonArray tokens_, logprobs_, top_, offsets_;
  int64_t offset_ = 0;  // characters
};

}  // namespace strata::server
