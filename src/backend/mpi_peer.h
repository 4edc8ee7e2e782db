// SPDX-License-Identifier: Apache-2.0
// MpiPeer: what a rank over MPI knows of another one. Plain values.
#pragma once
#include <cmath>
#include <deque>
#include <string>

#include "backend/settled_work.h"

namespace strata {

struct MpiPeer {
  std::string host = "?", hello = {};
  double last_heard = 0.0;
  bool ended = false, dead = false, leaving = false;
  std::deque<SettledWork> settled = {};  // of the piece of work that is under way, and the next

  // "rank 1 (node2)".
  [[nodiscard]] std::string name(int rank) const {
    return "rank " + std::to_string(rank) + " (" + host + ")";
  }
  // Whether it has failed in the work that is under way.
  [[nodiscard]] bool has_failed_work() const {
    return !settled.empty() && settled.front().end != SettledWork::End::kWell;
  }
  [[nodiscard]] std::string silence_text(int rank, double seconds) const {
    return name(rank) + " has been silent for " + std::to_string(std::lround(seconds)) + " s";
  }
  [[nodiscard]] RankFailure silence_failure(int rank, double seconds) const {
    return {ErrorCode::kIo,
            silence_text(rank, seconds) + ": it was stopped or killed, or its link is down"};
  }
};

}  // namespace strata
