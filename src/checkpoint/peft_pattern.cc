// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/peft_pattern.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "base/error.h"
#include "text/json_reader.h"
#include "text/regex/regex.h"

namespace strata {
namespace {

// Letters, digits and '_' stand for themselves, '.' for any one character: what nearly every key is
// made of.
bool is_simple(std::string_view key) {
  for (const char c : key) {
    const bool word =
        (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
    if (!word && c != '.') return false;
  }
  return true;
}

bool matches_simple(std::string_view key, std::string_view module) {
  if (key.size() > module.size()) return false;
  const size_t start = module.size() - key.size();
  if (start > 0 && module[start - 1] != '.') return false;
  for (size_t i = 0; i < key.size(); ++i) {
    if (key[i] != '.' && key[i] != module[start + i]) return false;
  }
  return true;
}

// Beyond it a digit, a blank, a letter of a word or of either case is one thing to Python and
// another to text::Regex.
bool is_printable_ascii(std::string_view text) {
  return std::ranges::all_of(text, [](char c) { return c >= ' ' && c <= '~'; });
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
                fmt::format("{}: key {}: {}", where, text::json_quote(key.substr(0, 200)), what));
  }

  void compile(Key& key) {
    if (!text::is_valid_utf8(key.text)) fail(key.text, "not UTF-8");
    try {
      key.regex.emplace("(.*\\.)?(" + key.text + ")$", "not a regular expression that is supported",
                        text::Regex::Syntax::kPython);
    } catch (const Error& error) {
      fail(key.text, error.what());
    }
    bytes_left -= key.regex->num_bytes();
    if (bytes_left < 0)
      fail(key.text,
           fmt::format("the expressions so far take more than {} MiB; wanted simpler ones",
                       kMaxBytes >> 20));
  }

  bool matches_within_limits(Key& key, std::string_view module) {
    const bool is_plain = is_printable_ascii(module);
    if (is_simple(key.text) && is_plain) return matches_simple(key.text, module);
    if (!is_simple(key.text) && !is_plain) fail_not_ascii(key, module);
    if (!key.regex) compile(key);
    const bool found = key.regex->matches_start(module, steps_left);
    if (steps_left < 0) fail_too_many_steps(key);
    return found;
  }

  [[noreturn]] void fail_not_ascii(const Key& key, std::string_view module) const {
    fail(key.text, fmt::format("the module {} has more than printable ASCII, to which alone a "
                               "regular expression is applied",
                               text::json_quote(module.substr(0, 200))));
  }

  [[noreturn]] void fail_too_many_steps(const Key& key) const {
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
    if (!is_simple(key)) state_->compile(added);
  }
}

PeftPatterns::~PeftPatterns() = default;
PeftPatterns::PeftPatterns(PeftPatterns&&) noexcept = default;
PeftPatterns& PeftPatterns::operator=(PeftPatterns&&) noexcept = default;

// A path with a line break, which no module of a model has, is matched by nothing but itself.
std::optional<size_t> PeftPatterns::find_matching_key(std::string_view module) {
  const bool is_line = module.find('\n') == std::string_view::npos && text::is_valid_utf8(module);
  for (size_t i = 0; is_line && i < state_->keys.size(); ++i) {
    if (state_->matches_within_limits(state_->keys[i], module)) return i;
  }
  // PEFT then looks the module's own path up in the dictionary.
  for (size_t i = 0; i < state_->keys.size(); ++i) {
    if (state_->keys[i].text == module) return i;
  }
  return std::nullopt;
}

}  // namespace strata
