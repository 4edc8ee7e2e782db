// SPDX-License-Identifier: Apache-2.0
#include "data/end_tokens.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <optional>

#include "base/error.h"
#include "text/json_field.h"

namespace strata::data {
namespace {

constexpr int64_t kMaxConfigBytes = int64_t{64} << 20;

[[noreturn]] void fail(const std::string& where, const std::string& what) {
  throw Error(ErrorCode::kInvalidArgument, fmt::format("{}: {}", where, what));
}

// The file's JSON object; nothing when there is no such file.
std::optional<boost::json::object> read_object(const ModelTexts& texts, std::string_view name) {
  const auto text = texts.find(name, kMaxConfigBytes);
  if (!text) return std::nullopt;
  return text::parse_json_object(*text, texts.where(name));
}

int32_t parse_token_id(const boost::json::value& value, const std::string& where,
                       int64_t vocab_size) {
  const int64_t* id = value.if_int64();
  if (id == nullptr || *id < 0 || *id >= vocab_size) {
    fail(where, fmt::format("eos_token_id: got {}, want ids below the tokenizer's {}; is the "
                            "tokenizer another model's?",
                            boost::json::serialize(value), vocab_size));
  }
  return static_cast<int32_t>(*id);
}

// "eos_token_id": a number, a list of numbers, or null.
std::vector<int32_t> read_eos_ids(const ModelTexts& texts, std::string_view name,
                                  int64_t vocab_size) {
  std::vector<int32_t> ids;
  const std::optional<boost::json::object> object = read_object(texts, name);
  const boost::json::value* field = object ? object->if_contains("eos_token_id") : nullptr;
  if (field == nullptr || field->is_null()) return ids;
  const std::string where = texts.where(name);
  if (!field->is_array()) return {parse_token_id(*field, where, vocab_size)};
  for (const boost::json::value& value : field->get_array()) {
    ids.push_back(parse_token_id(value, where, vocab_size));
  }
  return ids;
}

// "eos_token": a string, or an added-token object with "content", or null.
std::optional<int32_t> read_id_of_eos_token(const ModelTexts& texts,
                                            const text::Tokenizer& tokenizer) {
  constexpr std::string_view kName = "tokenizer_config.json";
  const std::optional<boost::json::object> object = read_object(texts, kName);
  const boost::json::value* field = object ? object->if_contains("eos_token") : nullptr;
  if (field != nullptr && field->is_object()) field = field->get_object().if_contains("content");
  if (field == nullptr || field->is_null()) return std::nullopt;
  if (!field->is_string()) fail(texts.where(kName), "eos_token: want a string");
  const std::string token(field->get_string());
  const std::optional<int32_t> id = tokenizer.token_to_id(token);
  if (!id) {
    fail(texts.where(kName),
         fmt::format("eos_token: '{}' is not a token of tokenizer.json", token));
  }
  return id;
}

void sort_unique(std::vector<int32_t>& ids) {
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
}

}  // namespace

EndTokens load_end_tokens(const ModelTexts& texts, const text::Tokenizer& tokenizer) {
  const int64_t vocab_size = tokenizer.vocab_size();
  EndTokens tokens;
  tokens.stop = read_eos_ids(texts, "generation_config.json", vocab_size);
  if (tokens.stop.empty()) tokens.stop = read_eos_ids(texts, "config.json", vocab_size);
  const std::optional<int32_t> named = read_id_of_eos_token(texts, tokenizer);
  if (named) {
    tokens.append = *named;
    tokens.stop.push_back(*named);
  } else if (!tokens.stop.empty()) {
    tokens.append = tokens.stop.front();
  }
  sort_unique(tokens.stop);
  return tokens;
}

std::vector<int32_t> load_stop_ids_of_all_configs(const ModelTexts& texts,
                                                  const text::Tokenizer& tokenizer) {
  std::vector<int32_t> ids = load_end_tokens(texts, tokenizer).stop;
  for (const int32_t id : read_eos_ids(texts, "config.json", tokenizer.vocab_size()))
    ids.push_back(id);
  sort_unique(ids);
  return ids;
}

}  // namespace strata::data
