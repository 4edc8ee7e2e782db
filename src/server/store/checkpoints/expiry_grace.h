// SPDX-License-Identifier: Apache-2.0
// ExpiryGrace: what has expired may go when every look at the wall clock in the last `grace`
// seconds found it expired, so that a clock that was wrong can be put right before anything is
// lost. Seconds throughout; one thread.
#pragma once

#include <algorithm>
#include <deque>

namespace strata::server {

class ExpiryGrace {
 public:
  explicit ExpiryGrace(double grace) : grace_(grace) {}

  // A look at both clocks. What expired by the time that is returned may go; before everything
  // else where the looks do not go back so far. Some looks are told as one, with the earliest time
  // of them: an expired file stays up to a kParts-th of the grace longer.
  double update_and_get_cutoff(double wall, double steady) {
    if (looks_.empty() || steady - looks_.back().steady >= grace_ / kParts) {
      looks_.push_back({steady, wall});
    } else {
      looks_.back().wall = std::min(looks_.back().wall, wall);
    }
    while (looks_.size() > 1 && looks_[1].steady <= steady - grace_) looks_.pop_front();
    if (looks_.front().steady > steady - grace_) return -1;
    const auto earlier = [](const Look& a, const Look& b) { return a.wall < b.wall; };
    return std::min_element(looks_.begin(), looks_.end(), earlier)->wall;
  }

 private:
  static constexpr double kParts = 64;
  struct Look {
    double steady;  // of the first
    double wall;    // the earliest
  };

  const double grace_;
  std::deque<Look> looks_;  // at most about kParts
};

}  // namespace strata::server
