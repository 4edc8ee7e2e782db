// SPDX-License-Identifier: Apache-2.0
// Comm: how the ranks of one run reach each other; nothing else may assume that they share memory.
// A rank is numbered from 0; every rank runs the same program on the same batch, and calls what all
// have to call (all_gather) in the same order. Messages are told apart by tags; those of one sender
// and tag arrive in the order of their sends. One thread a rank; others may send and receive
// besides, with tags that are theirs alone.
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "tensor/view.h"

namespace strata {

struct Interruption;

// Why a rank's part of a piece of work has failed.
struct RankFailure {
  ErrorCode code = ErrorCode::kIo;
  std::string what = {};
};

class Comm {
 public:
  static constexpr int kAnyRank = -1;  // of receive_bytes: whoever sends first
  virtual ~Comm() = default;
  [[nodiscard]] virtual int rank() const = 0;
  [[nodiscard]] virtual int size() const = 0;
  // Which it is of the ranks that share its cores, and how many they are.
  [[nodiscard]] virtual int rank_here() const { return rank(); }
  [[nodiscard]] virtual int ranks_here() const { return size(); }

  // Never waits for the receiver, who may be the sender itself; what was sent may change
  // afterwards.
  virtual void send_bytes(int to, int64_t tag, const void* data, int64_t bytes) = 0;
  // Waits for a message of just so many bytes. Throws where another rank has failed meanwhile.
  virtual void receive_bytes(int from, int64_t tag, void* data, int64_t bytes) = 0;

  // All tags are below it.
  [[nodiscard]] virtual int64_t end_of_tags() const { return INT64_MAX; }
  // That this rank has failed: of processes that have several ranks all stop at their next receive.
  // Who started other ranks sees what they throw.
  virtual void announce_failure(ErrorCode /*code*/, const std::string& /*what*/) {}

  // Ends a piece of work of all ranks, of which this one's part has failed, or has not. Where any
  // has, the others are stopped at their next receive, each is given the same failure, and no
  // message of that work is left: other work can follow. Collective; no other thread sends or
  // receives meanwhile.
  virtual std::optional<RankFailure> settle(const std::optional<RankFailure>& own);

  // Breaks: other work of all ranks, in the midst of what they are at. Each rank stops at a border
  // of its own ops, or where it waits, so messages of the two never mix, and each is settled by
  // itself. The Comm of what breaks in:
  [[nodiscard]] virtual Comm& breaking();
  // From now on what is due is run while this rank waits in receives, and of other ranks than 0 in
  // settle(); null: nothing is.
  virtual void set_breaks(const Interruption* /*breaks*/) {}
  // Rank 0, before it settles its work: has all others come. How often they were asked so far is
  // for any of their threads, and takes no time.
  virtual void ask_for_break() {}
  [[nodiscard]] virtual int64_t num_breaks_asked() const { return 0; }
  // Any thread: which rank says nothing, and since when, where ranks wait for such a one; else
  // empty.
  [[nodiscard]] virtual std::string find_silent_rank() { return {}; }

  // Dense tensors, wherever they lie.
  void send(int to, int64_t tag, TensorView tensor);
  void receive(int from, int64_t tag, TensorView tensor);
  // Every rank's values, [ranks, n]; n is the same on each.
  void all_gather(std::span<const double> values, std::vector<double>& all);
};

// The Comm of a rank that is alone, which has nothing to send.
class LoneComm : public Comm {
 public:
  [[nodiscard]] int rank() const override { return 0; }
  [[nodiscard]] int size() const override { return 1; }
  void send_bytes(int to, int64_t tag, const void* data, int64_t bytes) override;
  void receive_bytes(int from, int64_t tag, void* data, int64_t bytes) override;
};

}  // namespace strata
