// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/peft_pattern.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "base/error.h"
#include "checkpoint/json.h"
#include "text/regex/regex.h"

namespace strata {
namespace {

// Letters, digits and '_' stand for themselves, '.' for any one character: what nearly every key is
// made of.
bool simple(std::string_view key) {
  for (const char c : key) {
    const bool word =
        (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
    if (!word && c != '.') return false;
  }
  return true;
}

bool match_simple(std::string_view key, std::string_view module) {
  if (key.size() > module.size()) return false;
  const size_t start = module.size() - key.size();
  if (start > 0 && module[start - 1] != '.') return false;
  for (size_t i = 0; i < key.size(); ++i) {
    if (key[i] != '.' && key[i] != module[start + i]) return false;
  }
  return true;
}

bool is_ascii(std::string_view text) {
  return std::all_of(text.begin(), text.end(),
                     [](char c) { return static_cast<unsigned char>(c) < 0x80; });
}

// Whether the repeat that ends here without its brace, "a{2" or "a{2,2", is of one number.
bool is_exact(std::string_view key) {
  const std::string_view bounds = key.substr(key.rfind('{') + 1);  // without one all of it
  const size_t comma = bounds.find(',');
  return comma == std::string_view::npos || bounds.substr(0, comma) == bounds.substr(comma + 1);
}

// What text::Regex reads, and Python's re reads as something else, or not at all; empty: nothing.
std::string_view not_as_python(std::string_view key) {
  bool in_class = false;
  for (size_t i = 0; i < key.size(); ++i) {
    const std::string_view rest = key.substr(i);
    if (rest[0] == '\\' && rest.size() > 1) {
      if (std::string_view("pPzZexu").find(rest[1]) != std::string_view::npos)
        return rest.substr(0, 2);
      ++i;
    } else if (in_class) {
      if (rest[0] == ']') in_class = false;
      if (rest[0] == '[' || rest.starts_with("&&")) return "a class in a class";
    } else if (rest[0] == '[') {
      in_class = true;
    } else if (rest.starts_with("}+")) {
      return "}+";
    } else if (rest.starts_with("{,}")) {
      return "{,}";
    } else if (rest.starts_with("}?") && is_exact(key.substr(0, i))) {
      return "{n}?";
    } else if (rest.starts_with("(?i)")) {
      return "(?i)";
    }
  }
  return {};
}

}  // namespace

struct PeftPatterns::State {
  struct Key {
    std::string text;
    std::optional<text::Regex> regex;  // none of a simple key until a module needs it
  };
  std::string where;
  std::vector<Key> keys;
  int64_t steps_left = kMaxSteps;
  int64_t bytes_left = kMaxBytes;

  [[noreturn]] void fail(const std::string& key, const std::string& what) const {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("{}: key {}: {}", where, json_quote(key.substr(0, 200)), what));
  }

  void compile(Key& key) {
    if (!text::is_valid_utf8(key.text)) fail(key.text, "not UTF-8");
    const std::string_view other = not_as_python(key.text);
    if (!other.empty())
      fail(key.text, fmt::format("{} is not supported in a regular expression here", other));
    try {
      key.regex.emplace("(.*\\.)?(" + key.text + ")$",
                        "not a regular expression that is supported");
    } catch (const Error& error) {
      fail(key.text, error.what());
    }
    bytes_left -= key.regex->num_bytes();
    if (bytes_left < 0)
      fail(key.text,
           fmt::format("the expressions so far take more than {} MiB; wanted simpler ones",
                       kMaxBytes >> 20));
  }

  bool match(Key& key, std::string_view module) {
    if (simple(key.text) && is_ascii(module)) return match_simple(key.text, module);
    if (!key.regex) compile(key);
    const bool found = key.regex->matches_start(module, steps_left);
    if (steps_left >= 0) return found;
    fail(key.text, fmt::format("more than {} steps, or {} places to go back to, to match the "
                               "adapter's modules; wanted a simpler expression",
                               kMaxSteps, text::Regex::kMaxFrames));
  }
};

PeftPatterns::PeftPatterns(std::span<const std::string> keys, std::string where)
    : state_(std::make_unique<State>()) {
  state_->where = std::move(where);
  for (const std::string& key : keys) {
    if (key.size() > kMaxKeyBytes) {
      state_->fail(key, fmt::format("{} bytes, at most {} are accepted", key.size(), kMaxKeyBytes));
    }
    State::Key& added = state_->keys.emplace_back();
    added.text = key;
    if (!simple(key)) state_->compile(added);
  }
}

PeftPatterns::~PeftPatterns() = default;
PeftPatterns::PeftPatterns(PeftPatterns&&) noexcept = default;
PeftPatterns& PeftPatterns::operator=(PeftPatterns&&) noexcept = default;

// A path with a line break, which no module of a model has, is matched by nothing but itself.
std::optional<size_t> PeftPatterns::match(std::string_view module) {
  const bool is_line = module.find('\n') == std::string_view::npos && text::is_valid_utf8(module);
  for (size_t i = 0; is_line && i < state_->keys.size(); ++i) {
    if (state_->match(state_->keys[i], module)) return i;
  }
  // PEFT then looks the module's own path up in the dictionary.
  for (size_t i = 0; i < state_->keys.size(); ++i) {
    if (state_->keys[i].text == module) return i;
  }
  return std::nullopt;
}

}  // namespace strata
