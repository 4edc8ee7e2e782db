// SPDX-License-Identifier: Apache-2.0
// SettledWork: how a rank's part of a piece of work has ended (Comm::settle()), as ranks tell each
// other. Plain values.
#pragma once
#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

#include "backend/comm.h"
#include "base/check.h"

namespace strata {

struct SettledWork {
  // Well, by a failure of its own, or stopped by another's.
  enum class End : char { kWell, kFailed, kStopped };
  End end = End::kWell;
  RankFailure failure = {};

  [[nodiscard]] std::string text(size_t longest_message) const {
    const std::string head = {static_cast<char>(end), static_cast<char>(failure.code)};
    return head + failure.what.substr(0, longest_message);
  }
  static SettledWork of_text(const std::string& text) {
    CHECK(text.size() >= 2, text.size());
    return {static_cast<End>(text[0]), {static_cast<ErrorCode>(text[1]), text.substr(2)}};
  }
};

// The lowest rank that has failed by itself; -1: none has.
inline int find_failed_rank(const std::vector<SettledWork>& ranks) {
  const auto failed = std::find_if(ranks.begin(), ranks.end(), [](const SettledWork& work) {
    return work.end == SettledWork::End::kFailed;
  });
  return failed == ranks.end() ? -1 : static_cast<int>(failed - ranks.begin());
}

}  // namespace strata
