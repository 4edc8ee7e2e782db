// SPDX-License-Identifier: Apache-2.0
// StepBudget: how many tokens a sampling step may hold so that it lasts no longer than another
// tenant's sample should wait for the next one. Learns from the steps that ran.
#pragma once
#include <algorithm>
#include <cstdint>

namespace strata::engine {

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

}  // namespace strata::engine
