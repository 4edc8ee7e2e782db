// SPDX-License-Identifier: Apache-2.0
#include "schedule/walk.h"

#include <algorithm>
#include <optional>

#include "base/check.h"

namespace strata::schedule {
namespace {

class Walker {
 public:
  Walker(const Table& table, const Costs& costs)
      : table_(table),
        costs_(costs),
        rank_of_(ranks_of_stages(table)),
        next_(table.rows.size()),
        time_(table.rows.size()),
        forward_end_(table.num_items(), kNever),
        backward_end_(table.num_items(), kNever) {
    walk_.ranks.resize(table.rows.size());
  }

  Walk simulate() {
    run_all_slots();
    double busy = 0;
    for (size_t rank = 0; rank < next_.size(); ++rank) {
      CHECK(next_[rank] == table_.rows[rank].size(), rank, next_[rank]);  // was it verified?
      walk_.time = std::max(walk_.time, time_[rank]);
      busy += walk_.ranks[rank].busy;
      set_peak_live(rank);
    }
    const double all = walk_.time * static_cast<double>(next_.size());
    walk_.bubble_share = all > 0 ? 1 - busy / all : 0;
    return std::move(walk_);
  }

 private:
  static constexpr double kNever = -1;

  [[nodiscard]] int rank_of(int stage) const { return rank_of_[static_cast<size_t>(stage)]; }

  [[nodiscard]] double cost(Op op) const {
    switch (op) {
      case Op::kForward:
        return costs_.forward;
      case Op::kInputGrad:
        return costs_.input_grad;
      case Op::kWeightGrad:
        return costs_.weight_grad;
      case Op::kBackward:
        return costs_.input_grad + costs_.weight_grad;
      case Op::kSendForward:
      case Op::kRecvForward:
      case Op::kSendBackward:
      case Op::kRecvBackward:
        return 0;
    }
    return 0;
  }

  // When what the action takes from another stage is on its rank; nothing while nobody knows.
  [[nodiscard]] std::optional<double> arrival_time(const Action& a) const {
    const bool forward = a.op == Op::kForward;
    if (!forward && !is_backward(a.op)) return 0;
    const int source = a.stage + (forward ? -1 : 1);
    if (source < 0 || source == table_.num_stages) return 0;
    const double end = (forward ? forward_end_ : backward_end_)[table_.item(source, a.microbatch)];
    if (end == kNever) return {};
    if (rank_of(source) == rank_of(a.stage)) return end;
    return end + (forward ? costs_.send_forward : costs_.send_backward);
  }

  void run_all_slots() {
    bool progress = true;
    while (progress) {
      progress = false;
      for (size_t rank = 0; rank < next_.size(); ++rank) {
        const size_t begin = next_[rank];
        while (next_[rank] < table_.rows[rank].size() && try_run_slot(rank)) ++next_[rank];
        progress |= next_[rank] > begin;
      }
    }
  }

  bool try_run_slot(size_t rank) {
    const Slot& slot = table_.rows[rank][next_[rank]];
    double start = time_[rank], length = 0;
    for (const Action& a : slot.actions()) {
      const std::optional<double> from = arrival_time(a);
      if (!from) return false;
      start = std::max(start, *from);
      length += cost(a.op);
    }
    time_[rank] = start + length;
    walk_.ranks[rank].busy += length;
    if (length > 0) walk_.ranks[rank].slots.push_back({next_[rank], start, start + length});
    note_ends(slot, time_[rank]);
    return true;
  }

  void note_ends(const Slot& slot, double end) {
    for (const Action& a : slot.actions()) {
      if (a.op == Op::kForward) forward_end_[table_.item(a.stage, a.microbatch)] = end;
      if (is_backward(a.op)) backward_end_[table_.item(a.stage, a.microbatch)] = end;
    }
  }

  void set_peak_live(size_t rank) {
    int live = 0;
    for (const Slot& slot : table_.rows[rank]) {
      int done = 0;
      for (const Action& a : slot.actions()) {
        live += a.op == Op::kForward ? 1 : 0;
        done += has_weight_grad(a.op) ? 1 : 0;
      }
      walk_.ranks[rank].peak_live = std::max(walk_.ranks[rank].peak_live, live);
      live -= done;
    }
  }

  const Table& table_;
  const Costs& costs_;
  std::vector<int> rank_of_;                        // [stages]
  std::vector<size_t> next_;                        // [ranks] the place to run
  std::vector<double> time_;                        // [ranks] until when it is at work
  std::vector<double> forward_end_, backward_end_;  // [stages x micro-batches]
  Walk walk_;
};

}  // namespace

Costs ideal_costs(int forwarding_delay) {
  Costs costs;
  if (forwarding_delay > 1) {
    costs.send_forward = costs.forward;
    costs.send_backward = costs.input_grad + costs.weight_grad;
  }
  return costs;
}

Walk walk(const Table& table, const Costs& costs) { return Walker(table, costs).simulate(); }

}  // namespace strata::schedule
