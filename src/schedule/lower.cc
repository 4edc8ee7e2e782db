// SPDX-License-Identifier: Apache-2.0
#include "schedule/lower.h"

#include <optional>
#include <utility>

#include "base/check.h"

namespace strata::schedule {
namespace {

class Lowering {
 public:
  Lowering(const Table& table, int forwarding_delay)
      : table_(table),
        is_delayed_(forwarding_delay > 1),
        rank_of_(ranks_of_stages(table)),
        next_(table.rows.size()),
        held_(table.rows.size()),
        has_input_(table.num_items()),
        has_output_grad_(table.num_items()) {
    lowered_ = {.num_stages = table.num_stages,
                .num_microbatches = table.num_microbatches,
                .rows = std::vector<std::vector<Slot>>(table.rows.size())};
    for (int m = 0; m < table.num_microbatches; ++m) {
      has_input_[table_.item(0, m)] = true;
      has_output_grad_[table_.item(table.num_stages - 1, m)] = true;
    }
  }

  // In each round every rank runs one place, if it can.
  Table lower_all() {
    bool progress = true;
    while (progress) {
      progress = false;
      for (size_t rank = 0; rank < table_.rows.size(); ++rank) progress |= try_run_next_slot(rank);
    }
    for (size_t rank = 0; rank < table_.rows.size(); ++rank) {
      CHECK(next_[rank] == table_.rows[rank].size(), rank, next_[rank]);  // was it verified?
    }
    return std::move(lowered_);
  }

 private:
  [[nodiscard]] bool is_ready(const Action& action) const {
    CHECK(!is_transfer(action.op), action.stage, action.microbatch);
    if (action.op == Op::kForward) return has_input_[table_.item(action.stage, action.microbatch)];
    if (action.op == Op::kWeightGrad) return true;
    return has_output_grad_[table_.item(action.stage, action.microbatch)];
  }

  bool try_run_next_slot(size_t rank) {
    const std::vector<Slot>& row = table_.rows[rank];
    if (next_[rank] == row.size()) return false;
    const Slot& slot = row[next_[rank]];
    for (const Action& action : slot.actions()) {
      if (!is_ready(action)) return false;
    }
    ++next_[rank];
    if (slot.count > 0) lowered_.rows[rank].push_back(slot);
    if (held_[rank]) add_transfer(*std::exchange(held_[rank], std::nullopt));
    for (const Action& action : slot.actions()) deliver_output(action, rank);
    return true;
  }

  void deliver_output(const Action& action, size_t rank) {
    if (action.op == Op::kWeightGrad) return;
    const int to = action.stage + (action.op == Op::kForward ? 1 : -1);
    if (to < 0 || to == table_.num_stages) return;
    if (rank_of_[static_cast<size_t>(to)] == static_cast<int>(rank)) {
      mark_received(action, to);
    } else if (is_delayed_ && next_is_same_op(action, rank)) {
      held_[rank] = action;
    } else {
      add_transfer(action);
    }
  }

  // Is the next action of the same direction? A forward must not wait for a backward that needs it.
  [[nodiscard]] bool next_is_same_op(const Action& action, size_t rank) const {
    const std::vector<Slot>& row = table_.rows[rank];
    if (next_[rank] == row.size() || row[next_[rank]].count != 1) return false;
    return row[next_[rank]].parts[0].op == action.op;
  }

  void mark_received(const Action& action, int to) {
    std::vector<bool>& has = action.op == Op::kForward ? has_input_ : has_output_grad_;
    has[table_.item(to, action.microbatch)] = true;
  }

  void add_transfer(const Action& action) {
    const bool forward = action.op == Op::kForward;
    const int to = action.stage + (forward ? 1 : -1);
    const auto row = [&](int stage) -> std::vector<Slot>& {
      return lowered_.rows[static_cast<size_t>(rank_of_[static_cast<size_t>(stage)])];
    };
    const Op send_op = forward ? Op::kSendForward : Op::kSendBackward;
    const Op recv_op = forward ? Op::kRecvForward : Op::kRecvBackward;
    row(action.stage).emplace_back(Action{send_op, action.stage, action.microbatch});
    row(to).emplace_back(Action{recv_op, to, action.microbatch});
    mark_received(action, to);
  }

  const Table& table_;
  bool is_delayed_;
  std::vector<int> rank_of_;                 // [stages]
  std::vector<size_t> next_;                 // [ranks] the place to run
  std::vector<std::optional<Action>> held_;  // [ranks] computed, and to be sent after the next
  std::vector<bool> has_input_, has_output_grad_;  // [stages x micro-batches] on the stage's rank
  Table lowered_;
};

}  // namespace

Table lower(const Table& table, int forwarding_delay) {
  return Lowering(table, forwarding_delay).lower_all();
}

Table without_transfers(Table table) {
  for (std::vector<Slot>& row : table.rows) {
    std::erase_if(
        row, [](const Slot& slot) { return slot.count == 1 && is_transfer(slot.parts[0].op); });
  }
  return table;
}

}  // namespace strata::schedule
