// SPDX-License-Identifier: Apache-2.0
#include "server/openai/token_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>
#include <vector>

#include "text/unicode/unicode.h"

namespace strata::server {
namespace {

Json number_or_null(float value) { return Json(static_cast<double>(value)); }

// The bytes as they are where they are UTF-8; else with \xNN for what cannot be printed.
std::string escape_invalid_utf8(const std::string& bytes) {
  if (text::is_valid_utf8(bytes)) return bytes;
  std::string out;
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    out += byte >= 0x20 && byte < 0x7f ? std::string(1, c) : fmt::format("\\x{:02x}", byte);
  }
  return out;
}

JsonObject token_logprob_json(const text::Tokenizer& tokenizer, int32_t token, float logprob) {
  const std::string bytes = tokenizer.token_bytes(token);
  JsonArray list;
  for (const char c : bytes) list.add(int64_t{static_cast<unsigned char>(c)});
  return {
      {"token", escape_invalid_utf8(bytes)}, {"logprob", number_or_null(logprob)}, {"bytes", list}};
}

// Calls `take` with the id and logprob of each of the likeliest in place of the i-th token.
template <typename Take>
void for_each_top_token(const api::TopkTable& topk, size_t i, const Take& take) {
  const auto k = static_cast<size_t>(topk.k);
  for (size_t j = i * k; j < (i + 1) * k && j < topk.ids.size(); ++j) {
    if (topk.logprobs[j] != api::kNoTopk) take(topk.ids[j], topk.logprobs[j]);
  }
}

// The likeliest in place of the i-th token, whose text is `name`: it too is among them, and where
// several tokens have one text the first counts.
JsonObject top_logprobs_json(const text::Tokenizer& tokenizer, const EmittedTokens& told, size_t i,
                             const std::string& name) {
  JsonObject top;
  std::set<std::string> names;
  const auto add = [&](const std::string& key, float logprob) {
    if (names.insert(key).second) top.add(key, number_or_null(logprob));
  };
  for_each_top_token(told.topk, i,
                     [&](int32_t id, float logprob) { add(token_text(tokenizer, id), logprob); });
  add(name, told.logprobs[i]);
  return top;
}

}  // namespace

std::string token_text(const text::Tokenizer& tokenizer, int32_t token) {
  return escape_invalid_utf8(tokenizer.token_bytes(token));
}

JsonArray chat_logprob_items(const text::Tokenizer& tokenizer, const EmittedTokens& told) {
  JsonArray out;
  for (size_t i = 0; i < told.tokens.size(); ++i) {
    JsonObject item = token_logprob_json(tokenizer, told.tokens[i], told.logprobs[i]);
    JsonArray top;
    for_each_top_token(told.topk, i, [&](int32_t id, float logprob) {
      top.add(token_logprob_json(tokenizer, id, logprob));
    });
    out.add(item.add("top_logprobs", top));
  }
  return out;
}

void CompletionLogprobs::add_tokens(const text::Tokenizer& tokenizer, const EmittedTokens& told) {
  for (size_t i = 0; i < told.tokens.size(); ++i) {
    const std::string name = token_text(tokenizer, told.tokens[i]);
    const bool has_logprob = std::isfinite(told.logprobs[i]);
    tokens_.add(name);
    logprobs_.add(number_or_null(told.logprobs[i]));
    offsets_.add(offset_);
    offset_ += text::count_code_points(name);
    top_.add(has_logprob ? Json(top_logprobs_json(tokenizer, told, i, name)) : Json(nullptr));
  }
}

Json CompletionLogprobs::take_json() {
  return JsonObject{{"tokens", std::exchange(tokens_, {})},
                    {"token_logprobs", std::exchange(logprobs_, {})},
                    {"top_logprobs", std::exchange(top_, {})},
                    {"text_offset", std::exchange(offsets_, {})}};
}

}  // namespace strata::server
