// SPDX-License-Identifier: Apache-2.0
#include "server/openai/token_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <set>
#include <utility>
#include <vector>

#include "text/tokenizer/byte_level.h"
#include "text/unicode/unicode.h"

namespace strata::server {
namespace {

Json number_or_null(float value) { return Json(static_cast<double>(value)); }

// What the token adds behind others, half a character as it is.
std::string token_bytes(const text::Tokenizer& tokenizer, int32_t token) {
  // Behind another one, since a text's first loses a space in some vocabularies.
  std::vector<int32_t> ids = tokenizer.encode("a");
  const size_t before = tokenizer.decode(ids).size();
  ids.push_back(token);
  std::string bytes = tokenizer.decode(ids).substr(before);
  if (bytes.find("\uFFFD") == std::string::npos) return bytes;
  const std::string written = tokenizer.id_to_token(token).value_or("");
  unsigned value = 0;
  if (written.size() == 6 && written.starts_with("<0x") &&
      std::from_chars(written.data() + 3, written.data() + 5, value, 16).ec == std::errc()) {
    return {static_cast<char>(value)};
  }
  return text::byte_level_bytes(written).value_or(bytes);
}

std::string shown(const std::string& bytes) {
  if (text::is_valid_utf8(bytes)) return bytes;
  std::string out;
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    out += byte >= 0x20 && byte < 0x7f ? std::string(1, c) : fmt::format("\\x{:02x}", byte);
  }
  return out;
}

JsonObject told_token(const text::Tokenizer& tokenizer, int32_t token, float logprob) {
  const std::string bytes = token_bytes(tokenizer, token);
  JsonArray list;
  for (const char c : bytes) list.add(int64_t{static_cast<unsigned char>(c)});
  return {{"token", shown(bytes)}, {"logprob", number_or_null(logprob)}, {"bytes", list}};
}

// Of the i-th token: calls with each id and its logprob.
template <typename Take>
void each_top(const api::TopkTable& topk, size_t i, const Take& take) {
  const auto k = static_cast<size_t>(topk.k);
  for (size_t j = i * k; j < (i + 1) * k && j < topk.ids.size(); ++j) {
    if (topk.logprobs[j] != api::kNoTopk) take(topk.ids[j], topk.logprobs[j]);
  }
}

}  // namespace

std::string token_text(const text::Tokenizer& tokenizer, int32_t token) {
  return shown(token_bytes(tokenizer, token));
}

std::string chat_logprobs(const text::Tokenizer& tokenizer, const ToldTokens& told) {
  std::string out;
  for (size_t i = 0; i < told.tokens.size(); ++i) {
    JsonObject item = told_token(tokenizer, told.tokens[i], told.logprobs[i]);
    JsonArray top;
    each_top(told.topk, i,
             [&](int32_t id, float logprob) { top.add(told_token(tokenizer, id, logprob)); });
    item.add("top_logprobs", top);
    if (!out.empty()) out += ',';
    out += item.text();
  }
  return out;
}

void CompletionLogprobs::add(const text::Tokenizer& tokenizer, const ToldTokens& told) {
  for (size_t i = 0; i < told.tokens.size(); ++i) {
    const std::string name = token_text(tokenizer, told.tokens[i]);
    const bool has_logprob = std::isfinite(told.logprobs[i]);
    tokens_.add(name);
    logprobs_.add(number_or_null(told.logprobs[i]));
    offsets_.add(offset_);
    offset_ += text::count_code_points(name);
    JsonObject top;
    std::set<std::string> names;
    const auto add = [&](const std::string& key, float logprob) {
      if (names.insert(key).second) top.add(key, number_or_null(logprob));
    };
    each_top(told.topk, i,
             [&](int32_t id, float logprob) { add(token_text(tokenizer, id), logprob); });
    if (has_logprob) add(name, told.logprobs[i]);
    top_.add(has_logprob ? Json(top) : Json(nullptr));
  }
}

Json CompletionLogprobs::take() {
  return JsonObject{{"tokens", std::exchange(tokens_, {})},
                    {"token_logprobs", std::exchange(logprobs_, {})},
                    {"top_logprobs", std::exchange(top_, {})},
                    {"text_offset", std::exchange(offsets_, {})}};
}

}  // namespace strata::server
