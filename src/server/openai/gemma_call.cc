// SPDX-License-Identifier: Apache-2.0
// Source of the form: the chat template that Google publishes with Gemma 4.
#include "server/openai/gemma_call.h"

#include <algorithm>
#include <boost/json.hpp>
#include <optional>
#include <string>
#include <utility>

#include "base/ascii.h"
#include "server/http/message.h"
#include "server/openai/json_text.h"

namespace strata::server {
namespace {

constexpr std::string_view kCall = "call:";
constexpr std::string_view kSpace = " \t\r\n";
constexpr int kMostDepth = 200;  // of values in values

// Reads values as JSON. What is not whole yet is none.
class ValueReader {
 public:
  explicit ValueReader(std::string_view text) : rest_(text) {}

  [[nodiscard]] std::string_view rest() const { return rest_; }
  void skip_space() {
    rest_.remove_prefix(std::min(rest_.find_first_not_of(kSpace), rest_.size()));
  }
  bool skip(std::string_view mark) {
    if (!rest_.starts_with(mark)) return false;
    rest_.remove_prefix(mark.size());
    return true;
  }

  // A key with its colon: bare, or a text.
  std::optional<std::string> read_key() {
    skip_space();
    if (rest_.starts_with(kGemmaQuote)) {
      std::optional<std::string> key = read_text();
      skip_space();
      return key && skip(":") ? key : std::nullopt;
    }
    const size_t end = rest_.find_first_of(":,{}[]");
    if (end == std::string_view::npos || rest_[end] != ':') return std::nullopt;
    const std::string_view key = trimmed(rest_.substr(0, end));
    rest_.remove_prefix(end + 1);
    return key.empty() ? std::nullopt : std::optional(std::string(key));
  }

  // Reads a value and returns it as JSON; the comma or bracket that ends it stays.
  std::optional<std::string> read_value(int depth = 0) {
    skip_space();
    if (rest_.empty() || depth > kMostDepth) return std::nullopt;
    std::optional<std::string> out;
    if (rest_.starts_with(kGemmaQuote)) {
      out = read_text();
      if (out) out = json_quoted(*out);
    } else if (rest_.front() == '{' || rest_.front() == '[') {
      out = read_list(depth);
    } else {
      return read_bare();
    }
    skip_space();
    const bool ends =
        !rest_.empty() && std::string_view(",}]").find(rest_.front()) != std::string_view::npos;
    return ends ? out : std::nullopt;
  }

 private:
  std::optional<std::string> read_text() {
    const size_t end = rest_.find(kGemmaQuote, kGemmaQuote.size());
    if (end == std::string_view::npos) return std::nullopt;
    std::string text(rest_.substr(kGemmaQuote.size(), end - kGemmaQuote.size()));
    rest_.remove_prefix(end + kGemmaQuote.size());
    return text;
  }

  // Items or members, with their brackets.
  std::optional<std::string> read_list(int depth) {
    const bool is_object = rest_.front() == '{';
    const char close = is_object ? '}' : ']';
    std::string out(1, rest_.front());
    rest_.remove_prefix(1);
    skip_space();
    if (skip(std::string_view(&close, 1))) return out + close;
    while (true) {
      if (is_object) {
        const std::optional<std::string> key = read_key();
        if (!key) return std::nullopt;
        out += json_quoted(*key) + ":";
      }
      const std::optional<std::string> value = read_value(depth + 1);
      if (!value) return std::nullopt;
      out += *value;
      if (skip(std::string_view(&close, 1))) return out + close;
      if (!skip(",")) return std::nullopt;
      out += ',';
    }
  }

  // A number or a word of JSON, else a text that has lost its quotes.
  std::optional<std::string> read_bare() {
    const size_t end = rest_.find_first_of(",}]");
    if (end == std::string_view::npos) return std::nullopt;
    const std::string_view bare = trimmed(rest_.substr(0, end));
    if (bare.empty()) return std::nullopt;
    rest_.remove_prefix(end);
    return parse_json_text(bare) ? std::string(bare) : json_quoted(bare);
  }

  std::string_view rest_;
};

std::optional<ToolParameter> take_gemma_parameter(std::string_view& text, bool is_last) {
  ValueReader reader(text);
  reader.skip_space();
  reader.skip(",");
  std::optional<std::string> key = reader.read_key();
  if (!key) return std::nullopt;
  std::optional<std::string> value = reader.read_value();
  if (!value && is_last && reader.skip(kGemmaQuote)) {  // a text that was cut
    value = json_quoted(reader.rest());
    text.remove_prefix(text.size());
  } else if (value) {
    text = reader.rest();
  } else {
    return std::nullopt;
  }
  return ToolParameter{*std::move(key), *std::move(value), /*is_json=*/true};
}

}  // namespace

CallHead read_gemma_head(std::string_view inner) {
  using enum CallHead::State;
  const size_t begin = std::min(inner.find_first_not_of(kSpace), inner.size());
  const std::string_view text = inner.substr(begin);
  if (!text.starts_with(kCall)) return {.state = kCall.starts_with(text) ? kNotYet : kNone};
  const size_t brace = text.find('{');
  if (brace == std::string_view::npos) return {};
  const std::string_view name = trimmed(text.substr(kCall.size(), brace - kCall.size()));
  return {.state = name.empty() ? kNone : kKnown,
          .name = std::string(name),
          .arguments = begin + brace + 1,
          .next = take_gemma_parameter};
}

ToolCalls read_gemma(std::string_view inner, const ToolTypes&) {
  const CallHead head = read_gemma_head(inner);
  if (head.state != CallHead::State::kKnown) return std::nullopt;
  std::string_view rest = inner.substr(head.arguments);
  JsonObject arguments;
  while (const auto parameter = take_gemma_parameter(rest, /*is_last=*/true))
    arguments.add(parameter->name, Json::written(parameter->text));
  return std::vector{ToolCall{head.name, arguments.text()}};
}

}  // namespace strata::server
