// SPDX-License-Identifier: Apache-2.0
// ModelQueue: the operations of one model in the order of their numbers, whatever order they arrive
// in. Number n starts only after 1 ... n - 1 have started, were refused at submission, or were
// given up, and never twice; which request came with a number, the server remembers.
// Plain data, no lock: the Scheduler holds one.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "api/command.h"

namespace strata::scheduler {

using CommandPtr = std::shared_ptr<const api::Command>;

class ModelQueue {
 public:
  // Whether this number may still come: it has not, and nothing says that it will not.
  [[nodiscard]] bool awaits(int64_t seq_id) const {
    return seq_id >= next_ && !waiting_.contains(seq_id) && !refused_.contains(seq_id);
  }
  // Adds a command whose number is awaited.
  void add(const CommandPtr& command, double now);
  // The number was refused at submission: nobody waits for it. Of more than a thousand that are
  // ahead, those that are furthest may come again.
  void mark_refused(int64_t seq_id, double now);

  // The command that may start, or null.
  [[nodiscard]] CommandPtr ready() const;
  // How many may start one after the other. Walks over them.
  [[nodiscard]] size_t num_ready() const;
  // The first of them has started.
  void pop(double now);

  // Arrivals that a missing number below them holds back.
  [[nodiscard]] bool has_gap() const { return !waiting_.empty() && !waiting_.contains(next_); }
  [[nodiscard]] std::optional<double> gap_since() const;
  // These seconds do not count as waiting for it.
  void excuse(double seconds) { blocked_since_ += seconds; }
  // Gives up every missing number up to the highest arrival; returns what was held back.
  std::vector<CommandPtr> give_up_gap(double now);
  // Everything that has not started; nothing is left.
  std::vector<CommandPtr> take_all(double now);

  // The lowest number that has neither started nor been refused: while it is missing, everything
  // else waits for it.
  [[nodiscard]] int64_t next() const { return next_; }
  // The lowest number that has neither arrived nor been refused.
  [[nodiscard]] int64_t missing() const { return missing_; }
  [[nodiscard]] size_t num_waiting() const { return waiting_.size(); }

 private:
  void skip_refused(double now);
  void update_missing();

  static constexpr size_t kMostRefused = 1024;

  int64_t next_ = 1;     // the number whose turn it is
  int64_t missing_ = 1;  // >= next_
  std::map<int64_t, CommandPtr> waiting_;
  std::set<int64_t> refused_;   // refused numbers >= next_
  double blocked_since_ = 0.0;  // since when next_ is missing while others wait
};

}  // namespace strata::scheduler
