// SPDX-License-Identifier: Apache-2.0
// MpiPeer: what a rank over MPI knows of another one; MpiPeers: of all. Whoever has them says which
// lock guards them. Plain values.
#pragma once
#include <cmath>
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "backend/settled_work.h"

namespace strata {

// Work of all ranks, and what breaks in on it: each is settled by itself.
enum class WorkLevel : uint8_t { kWork, kBreak };

struct MpiPeer {
  std::string host = "?", hello = {};
  double last_heard = 0.0;
  bool ended = false, dead = false, leaving = false;
  // By its last sign of life: for how long its work has waited, and for what, while nothing that it
  // has sent was on its way.
  double waited = 0.0;
  std::string awaits = {};
  // How the peer's pieces of work ended, for the piece that is under way here and the next: of
  // plain work, and of work that breaks in.
  std::deque<SettledWork> settled_work = {}, settled_breaks = {};

  // "rank 1 (node2)".
  [[nodiscard]] std::string name(int rank) const {
    return "rank " + std::to_string(rank) + " (" + host + ")";
  }
  [[nodiscard]] const std::deque<SettledWork>& settled(WorkLevel level) const {
    return level == WorkLevel::kWork ? settled_work : settled_breaks;
  }
  [[nodiscard]] std::deque<SettledWork>& settled(WorkLevel level) {
    return level == WorkLevel::kWork ? settled_work : settled_breaks;
  }
  // Whether it has failed in the work that is under way.
  [[nodiscard]] bool has_failed(WorkLevel level) const {
    return !settled(level).empty() && settled(level).front().end != SettledWork::End::kWell;
  }
  [[nodiscard]] std::string silence_text(int rank, double seconds) const {
    return name(rank) + " has been silent for " + std::to_string(std::lround(seconds)) + " s";
  }
  [[nodiscard]] RankFailure silence_failure(int rank, double seconds) const {
    return {ErrorCode::kIo,
            silence_text(rank, seconds) + ": it was stopped or killed, or its link is down"};
  }
};

class MpiPeers {
 public:
  void start(int own_rank, int num_ranks, double now) {
    own_rank_ = own_rank;
    all_.assign(static_cast<size_t>(num_ranks), MpiPeer{.last_heard = now});
  }
  [[nodiscard]] MpiPeer& operator[](int rank) { return all_[static_cast<size_t>(rank)]; }

  // Calls body with the number of each rank but this one, and what is known of it.
  template <typename Body>
  void for_others(Body body) {
    for (size_t rank = 0; rank < all_.size(); ++rank) {
      if (static_cast<int>(rank) != own_rank_) body(static_cast<int>(rank), all_[rank]);
    }
  }
  // Whether it is so with all other ranks.
  template <typename Is>
  [[nodiscard]] bool all_others(Is is) {
    bool all = true;
    for_others([&](int, const MpiPeer& peer) { all = all && is(peer); });
    return all;
  }
  // Whether another rank has failed in what this one is at.
  [[nodiscard]] bool is_work_stopped(WorkLevel level) {
    return !all_others([=](const MpiPeer& peer) { return !peer.has_failed(level); });
  }
  [[nodiscard]] bool have_settled(WorkLevel level) {
    return all_others([=](const MpiPeer& peer) { return !peer.settled(level).empty(); });
  }
  // How the work has ended on every rank, each of which has settled.
  std::vector<SettledWork> take_settled(WorkLevel level, const SettledWork& own) {
    std::vector<SettledWork> works(all_.size(), own);
    for_others([&](int rank, MpiPeer& peer) {
      works[static_cast<size_t>(rank)] = peer.settled(level).front();
      peer.settled(level).pop_front();
    });
    return works;
  }
  // What each waits for, where all do since `seconds` at least, and have said so after `heard`.
  [[nodiscard]] std::string find_deadlock(const std::string& own_awaits, double seconds,
                                          double heard) {
    std::string text = "rank " + std::to_string(own_rank_) + " for " + own_awaits;
    for_others([&](int rank, const MpiPeer& peer) {
      text += ", " + peer.name(rank) + " for " + peer.awaits;
    });
    const bool all_wait = all_others(
        [=](const MpiPeer& peer) { return peer.waited >= seconds && peer.last_heard > heard; });
    return all_wait ? text : "";
  }
  // Whether all that are lower than this rank are dead.
  [[nodiscard]] bool are_lower_dead() {
    bool all = true;
    for (int rank = 0; rank < own_rank_; ++rank) all = all && (*this)[rank].dead;
    return all;
  }

 private:
  int own_rank_ = 0;
  std::vector<MpiPeer> all_;
};

}  // namespace strata
