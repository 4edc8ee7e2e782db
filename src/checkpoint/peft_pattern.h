// SPDX-License-Identifier: Apache-2.0
// PeftPatterns: the keys of rank_pattern and alpha_pattern, matched as PEFT's get_pattern_key does:
// the first key K, in the order of the file, for which Python's re.match(rf"(.*\.)?({K})$", module)
// succeeds, so a key matches a module whose path equals it or ends in "." + key. A key is a regular
// expression from a file that is not trusted: what text/regex/regex.h does not know, or Python
// reads otherwise, is an Error that names it, and so is a module beyond printable ASCII that one is
// to match; all keys of one object together may take kMaxBytes as expressions, and all its matches
// kMaxSteps steps, then an Error names the key.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace strata {

class PeftPatterns {
 public:
  static constexpr int64_t kMaxSteps = 20'000'000;
  static constexpr size_t kMaxKeyBytes = 4096;
  static constexpr int64_t kMaxBytes = 256 << 20;

  // `where` names the file and the key of the config, for messages. Refuses a key that is no
  // expression.
  PeftPatterns(std::span<const std::string> keys, std::string where);
  ~PeftPatterns();
  PeftPatterns(PeftPatterns&&) noexcept;
  PeftPatterns& operator=(PeftPatterns&&) noexcept;

  // Index of the key that decides for this module. One thread.
  [[nodiscard]] std::optional<size_t> find_matching_key(std::string_view module);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace strata
