// SPDX-License-Identifier: Apache-2.0
#include "schedule/waits.h"

#include <fmt/format.h>

namespace strata::schedule {
namespace {

class DeadlockFinder {
 public:
  explicit DeadlockFinder(const Table& table)
      : table_(table),
        has_transfers_(has_transfers(table)),
        next_(table.rows.size()),
        has_run_(table.num_items() * kNumKinds) {}

  std::optional<Fault> find_wait_fault() {
    run_until_stuck();
    for (size_t rank = 0; rank < next_.size(); ++rank) {
      if (next_[rank] < table_.rows[rank].size()) return deadlock_of(rank);
    }
    return {};
  }

 private:
  // What others wait for: forwards, gradients of inputs, and sends of either.
  static constexpr size_t kNumKinds = 4;
  [[nodiscard]] size_t index(const Action& a) const {
    const size_t kind = a.op == Op::kForward        ? 0
                        : a.op == Op::kSendForward  ? 1
                        : a.op == Op::kSendBackward ? 2
                                                    : 3;
    return table_.item(a.stage, a.microbatch) * kNumKinds + kind;
  }

  [[nodiscard]] Fault deadlock_of(size_t rank) const {
    const Slot& slot = table_.rows[rank][next_[rank]];
    return {
        static_cast<int>(rank), static_cast<int>(next_[rank]), to_string(slot), Rule::kDeadlock,
        fmt::format("it waits for {}, which waits for it", to_string(*find_missing_input(slot)))};
  }

  void run_until_stuck() {
    bool progress = true;
    while (progress) {
      progress = false;
      for (size_t rank = 0; rank < next_.size(); ++rank) progress |= run_ready_slots(rank);
    }
  }

  bool run_ready_slots(size_t rank) {
    const std::vector<Slot>& row = table_.rows[rank];
    const size_t begin = next_[rank];
    while (next_[rank] < row.size() && !find_missing_input(row[next_[rank]])) {
      for (const Action& a : row[next_[rank]].actions()) {
        if (a.op == Op::kForward || is_backward(a.op) || is_send(a.op)) has_run_[index(a)] = true;
      }
      ++next_[rank];
    }
    return next_[rank] > begin;
  }

  // What an action takes from elsewhere. With transfers only receives wait.
  [[nodiscard]] std::optional<Action> find_input(const Action& a) const {
    if (is_transfer(a.op)) {
      return is_send(a.op) ? std::optional<Action>() : counterpart(a);
    }
    if (has_transfers_) return {};
    if (a.op == Op::kForward && a.stage > 0) return Action{a.op, a.stage - 1, a.microbatch};
    if (is_backward(a.op) && a.stage < table_.num_stages - 1) {
      return Action{Op::kBackward, a.stage + 1, a.microbatch};
    }
    return {};
  }

  [[nodiscard]] std::optional<Action> find_missing_input(const Slot& slot) const {
    for (const Action& a : slot.actions()) {
      const std::optional<Action> from = find_input(a);
      if (from && !has_run_[index(*from)]) return from;
    }
    return {};
  }

  const Table& table_;
  bool has_transfers_;
  std::vector<size_t> next_;  // [ranks] the place to run
  std::vector<bool> has_run_;
};

}  // namespace

std::optional<Fault> find_deadlock(const Table& table) {
  return DeadlockFinder(table).find_wait_fault();
}

}  // namespace strata::schedule
