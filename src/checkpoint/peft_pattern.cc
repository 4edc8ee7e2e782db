// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/peft_pattern.h"

#include <fmt/format.h>

#include <utility>
#include <vector>

#include "base/error.h"
#include "checkpoint/json.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

namespace strata {
namespace {

using Code = std::unique_ptr<pcre2_code, decltype(&pcre2_code_free)>;
using CompileContext =
    std::unique_ptr<pcre2_compile_context, decltype(&pcre2_compile_context_free)>;
using MatchContext = std::unique_ptr<pcre2_match_context, decltype(&pcre2_match_context_free)>;
using MatchData = std::unique_ptr<pcre2_match_data, decltype(&pcre2_match_data_free)>;

constexpr int kOutOfSteps = PCRE2_ERROR_CALLOUT;
constexpr uint32_t kNestingLimit = 50;
constexpr uint32_t kHeapLimitKib = 20'000;

std::string message_of(int code) {
  PCRE2_UCHAR text[256];
  if (pcre2_get_error_message(code, text, sizeof(text)) < 0) return "an unknown fault";
  return reinterpret_cast<const char*>(text);
}

PCRE2_SPTR bytes_of(std::string_view text) { return reinterpret_cast<PCRE2_SPTR>(text.data()); }

// PCRE2 calls this before each item of an expression that it tries (PCRE2_AUTO_CALLOUT).
int count_step(pcre2_callout_block*, void* left) {
  return --*static_cast<int64_t*>(left) < 0 ? kOutOfSteps : 0;
}

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

bool ascii_line(std::string_view text) {
  for (const char c : text) {
    if (static_cast<unsigned char>(c) >= 0x80 || c == '\n') return false;
  }
  return true;
}

}  // namespace

struct PeftPatterns::State {
  struct Key {
    std::string text;
    Code code{nullptr, &pcre2_code_free};  // null for a simple key until a module needs it
  };
  std::string where;
  std::vector<Key> keys;
  CompileContext compile_context{pcre2_compile_context_create(nullptr),
                                 &pcre2_compile_context_free};
  MatchContext match_context{pcre2_match_context_create(nullptr), &pcre2_match_context_free};
  MatchData match_data{pcre2_match_data_create(1, nullptr), &pcre2_match_data_free};
  int64_t steps_left = kMaxSteps;

  [[noreturn]] void fail(const std::string& key, const std::string& what) const {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("{}: key {}: {}", where, json_quote(key.substr(0, 200)), what));
  }

  void compile(Key& key) {
    const std::string pattern = "(.*\\.)?(" + key.text + ")$";
    int fault = 0;
    size_t at = 0;
    key.code.reset(pcre2_compile(
        bytes_of(pattern), pattern.size(),
        PCRE2_ANCHORED | PCRE2_UTF | PCRE2_UCP | PCRE2_AUTO_CALLOUT | PCRE2_NEVER_BACKSLASH_C,
        &fault, &at, compile_context.get()));
    if (!key.code) fail(key.text, "not a regular expression: " + message_of(fault));
  }

  bool match(Key& key, std::string_view module) {
    if (simple(key.text) && ascii_line(module)) return match_simple(key.text, module);
    if (!key.code) compile(key);
    const int result = pcre2_match(key.code.get(), bytes_of(module), module.size(), 0, 0,
                                   match_data.get(), match_context.get());
    if (result >= 0) return true;
    if (result == PCRE2_ERROR_NOMATCH) return false;
    fail(key.text, result == kOutOfSteps
                       ? fmt::format("more than {} steps to match the adapter's modules; wanted a "
                                     "simpler expression",
                                     kMaxSteps)
                       : message_of(result));
  }
};

PeftPatterns::PeftPatterns(std::span<const std::string> keys, std::string where)
    : state_(std::make_unique<State>()) {
  state_->where = std::move(where);
  pcre2_set_parens_nest_limit(state_->compile_context.get(), kNestingLimit);
  pcre2_set_heap_limit(state_->match_context.get(), kHeapLimitKib);
  pcre2_set_callout(state_->match_context.get(), &count_step, &state_->steps_left);
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

std::optional<size_t> PeftPatterns::match(std::string_view module) {
  for (size_t i = 0; i < state_->keys.size(); ++i) {
    if (state_->match(state_->keys[i], module)) return i;
  }
  // PEFT then looks the module's own path up in the dictionary.
  for (size_t i = 0; i < state_->keys.size(); ++i) {
    if (state_->keys[i].text == module) return i;
  }
  return std::nullopt;
}

}  // namespace strata
