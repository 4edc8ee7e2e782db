// SPDX-License-Identifier: Apache-2.0
// How many tokens a sampling step has, and whose they are. Plain arithmetic.
#pragma once
#include <algorithm>
#include <cstdint>
#include <span>

namespace strata::engine {

// StepBudget: how many tokens a step may hold so that it lasts no longer than another tenant's
// sample should wait for the next one. Learns from the steps that ran.
class StepBudget {
 public:
  static constexpr double kSeconds = 0.4;  // that a step should last at most
  static constexpr int64_t kLeast = 32;    // fewer would not pay for reading the weights
  static constexpr int64_t kMost = 4096;

  [[nodiscard]] int64_t tokens() const { return tokens_; }
  void note(int64_t tokens, double seconds) {
    if (seconds > kSeconds) {
      const auto fit = static_cast<int64_t>(static_cast<double>(tokens) * kSeconds / seconds);
      tokens_ = std::clamp(fit, kLeast, tokens_);
    } else if (tokens >= tokens_ && seconds < kSeconds / 2) {
      tokens_ = std::min(2 * tokens_, kMost);
    }
  }

 private:
  int64_t tokens_ = 128;
};

// What one of those whose rows run claims of a step. With one owner all rows that decode go, and
// prompts get what is left. With several each gets as much as another (max-min): who asks for less
// than the share gets all of it.
struct StepClaim {
  uint64_t owner = 0;
  int64_t decoding = 0;  // rows that would give a token
  int64_t prompt = 0;    // tokens that would be read
  // What it gets.
  int64_t granted_decoding = 0;
  int64_t granted_prompt = 0;
};

// `budget` >= 1 tokens; `turn` says with whom the first share begins, so that none is always last
// when there are more owners than tokens.
void share_step(std::span<StepClaim> claims, int64_t budget, uint64_t turn);

}  // namespace strata::engine
