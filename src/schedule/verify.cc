// SPDX-License-Identifier: Apache-2.0
#include "schedule/verify.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "schedule/waits.h"

namespace strata::schedule {
namespace {

// Where an action stands, or rank -1.
struct Place {
  int rank = -1;
  int slot = 0;
  [[nodiscard]] bool is_set() const { return rank >= 0; }
};

// What is known of one stage and micro-batch. I and B share a place: both make the input's
// gradient.
struct Item {
  Place forward, backward, weight_grad;
  Place sent_forward, received_forward, sent_backward, received_backward;
};

class Verifier {
 public:
  explicit Verifier(const Table& table)
      : table_(table), has_transfers_(has_transfers(table)), rank_of_(ranks_of_stages(table)) {}

  std::optional<Fault> find_first_fault() {
    if (find_fault_in_numbers()) return fault_;
    items_.resize(table_.num_items());
    orders_.resize(static_cast<size_t>(table_.num_stages));
    if (find_queue_fault() || find_missing_action() || find_fault_in_channels()) return fault_;
    return find_deadlock(table_);
  }

 private:
  Item& item(int stage, int microbatch) { return items_[table_.item(stage, microbatch)]; }
  [[nodiscard]] int rank_of(int stage) const { return rank_of_[static_cast<size_t>(stage)]; }
  [[nodiscard]] bool is_last(int stage) const { return stage == table_.num_stages - 1; }

  // True, as of all that find a fault: there is one, and nothing more is looked at.
  bool set_fault(Place at, std::string action, Rule rule, std::string detail) {
    fault_ = {at.rank, at.slot, std::move(action), rule, std::move(detail)};
    return true;
  }
  bool set_fault(Place at, const Action& action, Rule rule, std::string detail) {
    return set_fault(at, to_string(action), rule, std::move(detail));
  }
  bool set_missing_fault(int stage, const std::string& action) {
    const int rank = std::max(0, rank_of(stage));
    const int end = static_cast<int>(table_.rows[static_cast<size_t>(rank)].size());
    return set_fault({rank, end}, action, Rule::kComplete, fmt::format("{} is missing", action));
  }

  // body(place, slot) for each place until one returns true.
  template <typename Body>
  bool any_slot(const Body& body) {
    for (int rank = 0; rank < table_.num_ranks(); ++rank) {
      const std::vector<Slot>& row = table_.rows[static_cast<size_t>(rank)];
      for (size_t slot = 0; slot < row.size(); ++slot) {
        if (body(Place{rank, static_cast<int>(slot)}, row[slot])) return true;
      }
    }
    return false;
  }
  template <typename Body>
  bool any_action(const Body& body) {
    return any_slot([&](Place at, const Slot& slot) {
      for (const Action& action : slot.actions()) {
        if (body(at, action)) return true;
      }
      return false;
    });
  }

  // Numbers in range, and few enough stages and micro-batches for the table to be complete, so that
  // memory is asked for in proportion to the table.
  bool find_fault_in_numbers() {
    if (table_.num_stages < 1 || table_.num_microbatches < 1 || table_.rows.empty()) {
      return set_fault({0, 0}, "", Rule::kComplete, "nothing stands in the table");
    }
    int64_t num_forwards = 0;
    const bool found = any_action([&](Place at, const Action& a) {
      num_forwards += a.op == Op::kForward ? 1 : 0;
      return find_fault_of_range(at, a);
    });
    if (found) return true;
    const int64_t wanted = int64_t{table_.num_stages} * table_.num_microbatches;
    return num_forwards < wanted && set_missing_forward_fault();
  }

  bool find_fault_of_range(Place at, const Action& a) {
    if (a.stage >= 0 && a.stage < table_.num_stages && a.microbatch >= 0 &&
        a.microbatch < table_.num_microbatches) {
      return false;
    }
    return set_fault(at, a, Rule::kRange,
                     fmt::format("stages are 0 to {}, micro-batches 0 to {}", table_.num_stages - 1,
                                 table_.num_microbatches - 1));
  }

  bool set_missing_forward_fault() {
    const auto [stage, microbatch] = first_missing_forward();
    return set_missing_fault(stage, to_string(Action{Op::kForward, stage, microbatch}));
  }

  std::pair<int, int> first_missing_forward() {
    std::vector<std::pair<int, int>> found;
    any_action([&](Place, const Action& a) {
      if (a.op == Op::kForward) found.emplace_back(a.stage, a.microbatch);
      return false;
    });
    std::ranges::sort(found);
    found.erase(std::ranges::unique(found).begin(), found.end());
    std::pair<int, int> want{0, 0};
    for (const auto& have : found) {
      if (have != want) break;
      if (++want.second == table_.num_microbatches) want = {want.first + 1, 0};
    }
    return want;
  }

  // Everything that one queue shows, place by place.
  bool find_queue_fault() {
    return any_slot([&](Place at, const Slot& slot) {
      if (slot.count == 2 && find_fault_of_overlap(at, slot)) return true;
      for (const Action& action : slot.actions()) {
        if (find_action_fault(at, action)) return true;
      }
      return false;
    });
  }

  bool find_fault_of_overlap(Place at, const Slot& slot) {
    const auto& [first, second] = slot.parts;
    const bool is_pair = (first.op == Op::kForward && is_backward(second.op)) ||
                         (second.op == Op::kForward && is_backward(first.op));
    if (is_pair && first.microbatch != second.microbatch) return false;
    return set_fault(at, to_string(slot), Rule::kOnePlace,
                     "only a forward and a backward of two micro-batches may overlap");
  }

  bool find_action_fault(Place at, const Action& a) {
    if (find_fault_of_rank(at, a) || find_place_fault(at, a)) return true;
    switch (a.op) {
      case Op::kForward:
        return find_order_fault(at, a) || find_fault_of_source(at, a, a.stage - 1, a.stage == 0);
      case Op::kInputGrad:
      case Op::kBackward:
        return find_missing_forward(at, a) || find_order_fault(at, a) ||
               find_fault_of_source(at, a, a.stage + 1, is_last(a.stage));
      case Op::kWeightGrad:
        return find_missing_input_grad(at, a) || find_order_fault(at, a);
      case Op::kSendForward:
      case Op::kSendBackward:
        return find_fault_of_send(at, a);
      case Op::kRecvForward:
      case Op::kRecvBackward:
        return find_fault_of_peer(at, a);
    }
    return false;
  }

  bool find_fault_of_rank(Place at, const Action& a) {
    if (rank_of(a.stage) == at.rank) return false;
    return set_fault(at, a, Rule::kOneRank,
                     fmt::format("stage {} has actions on rank {}", a.stage, rank_of(a.stage)));
  }

  bool find_missing_forward(Place at, const Action& backward) {
    if (item(backward.stage, backward.microbatch).forward.is_set()) return false;
    return set_fault(at, backward, Rule::kForwardFirst,
                     not_before(Op::kForward, backward, backward.stage));
  }

  bool find_missing_input_grad(Place at, const Action& weight_grad) {
    if (item(weight_grad.stage, weight_grad.microbatch).backward.is_set()) return false;
    return set_fault(at, weight_grad, Rule::kInputGradFirst,
                     not_before(Op::kInputGrad, weight_grad, weight_grad.stage));
  }

  static std::string not_before(Op op, const Action& a, int stage) {
    return fmt::format("{} does not stand before it", to_string(Action{op, stage, a.microbatch}));
  }

  // Where an action stands; of a B, the place that it shares with I.
  static Place& place_of(Item& of, Op op) {
    switch (op) {
      case Op::kForward:
        return of.forward;
      case Op::kInputGrad:
      case Op::kBackward:
        return of.backward;
      case Op::kWeightGrad:
        return of.weight_grad;
      case Op::kSendForward:
        return of.sent_forward;
      case Op::kRecvForward:
        return of.received_forward;
      case Op::kSendBackward:
        return of.sent_backward;
      case Op::kRecvBackward:
        break;
    }
    return of.received_backward;
  }

  // Notes where the action stands, unless it stands somewhere already; a B stands for I and W.
  bool find_place_fault(Place at, const Action& a) {
    Item& of = item(a.stage, a.microbatch);
    Place& own = place_of(of, a.op);
    Place& last = a.op == Op::kBackward ? of.weight_grad : own;
    for (const Place& place : {own, last}) {
      if (!place.is_set()) continue;
      return set_fault(at, a, Rule::kOnce,
                       fmt::format("rank {}, slot {} does it already", place.rank, place.slot));
    }
    if (!is_blocked(a)) own = last = at;
    return false;
  }

  // Is what it computes from not there yet? Then it is about to be refused.
  bool is_blocked(const Action& a) {
    const Item& of = item(a.stage, a.microbatch);
    if (is_backward(a.op)) return !of.forward.is_set();
    return a.op == Op::kWeightGrad && !of.backward.is_set();
  }

  struct Order {
    int last = -1;
    int direction = 0;  // of micro-batches, once two have been seen
  };
  struct StageOrder {
    Order forward, backward, weight_grad;
  };

  bool find_order_fault(Place at, const Action& a) {
    StageOrder& of = orders_[static_cast<size_t>(a.stage)];
    if (a.op == Op::kForward) {
      of.forward.direction = 1;
      return find_order_fault(at, a, of.forward);
    }
    if (is_backward(a.op) && find_order_fault(at, a, of.backward)) return true;
    return has_weight_grad(a.op) && find_order_fault(at, a, of.weight_grad);
  }

  bool find_order_fault(Place at, const Action& a, Order& order) {
    const int last = std::exchange(order.last, a.microbatch);
    if (last < 0) return false;
    const int direction = a.microbatch > last ? 1 : -1;
    if (order.direction == 0) order.direction = direction;
    if (direction == order.direction) return false;
    return set_fault(at, a, Rule::kInOrder,
                     fmt::format("micro-batch {} of stage {} comes before it", last, a.stage));
  }

  // What a computation reads: a stage's output on the same rank, or what has been received.
  bool find_fault_of_source(Place at, const Action& a, int source, bool has_none) {
    if (has_none) return false;
    if (rank_of(source) == at.rank) return find_missing_predecessor(at, a, source);
    return has_transfers_ && find_missing_receive(at, a);
  }

  bool find_missing_predecessor(Place at, const Action& a, int source) {
    const bool forward = a.op == Op::kForward;
    const Item& of = item(source, a.microbatch);
    const Place& made = forward ? of.forward : of.backward;
    if (made.is_set() && made.slot < at.slot) return false;
    return set_fault(at, a, Rule::kPredecessorFirst,
                     not_before(forward ? Op::kForward : Op::kBackward, a, source));
  }

  bool find_missing_receive(Place at, const Action& a) {
    const bool forward = a.op == Op::kForward;
    const Item& of = item(a.stage, a.microbatch);
    if ((forward ? of.received_forward : of.received_backward).is_set()) return false;
    return set_fault(at, a, Rule::kReceivedFirst,
                     not_before(forward ? Op::kRecvForward : Op::kRecvBackward, a, a.stage));
  }

  // A transfer goes to a stage that there is, on another rank.
  bool find_fault_of_peer(Place at, const Action& a) {
    const int peer = counterpart(a).stage;
    if (peer < 0 || peer >= table_.num_stages) {
      return set_fault(at, a, Rule::kReceivedIsSent,
                       fmt::format("there is no stage {}: it has nobody to talk to", peer));
    }
    if (rank_of(peer) != at.rank) return false;
    return set_fault(at, a, Rule::kReceivedIsSent,
                     fmt::format("stage {} is on the same rank, where nothing is sent", peer));
  }

  bool find_fault_of_send(Place at, const Action& a) {
    if (find_fault_of_peer(at, a)) return true;
    const bool forward = a.op == Op::kSendForward;
    const Item& of = item(a.stage, a.microbatch);
    if ((forward ? of.forward : of.backward).is_set()) return false;
    return set_fault(at, a, Rule::kSentIsComputed,
                     not_before(forward ? Op::kForward : Op::kBackward, a, a.stage));
  }

  bool find_missing_action() {
    for (int stage = 0; stage < table_.num_stages; ++stage) {
      for (int m = 0; m < table_.num_microbatches; ++m) {
        const Item& of = item(stage, m);
        const auto missing = [&](Op op) {
          return set_missing_fault(stage, to_string(Action{op, stage, m}));
        };
        if (!of.forward.is_set()) return missing(Op::kForward);
        if (!of.backward.is_set()) return missing(Op::kBackward);
        if (!of.weight_grad.is_set()) return missing(Op::kWeightGrad);
      }
    }
    return false;
  }

  using Channel = std::pair<int, int>;  // from rank, to rank
  using Transfers = std::map<Channel, std::vector<std::pair<Place, Action>>>;

  void list_transfers(Transfers& sends, Transfers& receives) {
    any_action([&](Place at, const Action& a) {
      if (!is_transfer(a.op)) return false;
      const int peer = rank_of(counterpart(a).stage);
      if (is_send(a.op)) sends[{at.rank, peer}].emplace_back(at, a);
      if (!is_send(a.op)) receives[{peer, at.rank}].emplace_back(at, a);
      return false;
    });
  }

  // Each send has its receive, and those of two ranks are in one order.
  bool find_fault_in_channels() {
    if (find_missing_counterpart()) return true;
    Transfers sends, receives;
    list_transfers(sends, receives);
    for (const auto& [channel, received] : receives) {
      if (find_fault_of_channel(channel, sends[channel], received)) return true;
    }
    return false;
  }

  // Both have as many.
  bool find_fault_of_channel(const Channel& channel, const Transfers::mapped_type& sent,
                             const Transfers::mapped_type& received) {
    for (size_t i = 0; i < received.size(); ++i) {
      const auto& [at, a] = received[i];
      const Action& other = sent[i].second;
      if (counterpart(a) == other) continue;
      return set_fault(at, a, Rule::kChannelOrder,
                       fmt::format("rank {} sends {} first", channel.first, to_string(other)));
    }
    return false;
  }

  bool find_missing_counterpart() {
    return any_action([&](Place at, const Action& a) {
      if (!is_transfer(a.op)) return false;
      const Action other = counterpart(a);
      if (place_of(item(other.stage, other.microbatch), other.op).is_set()) return false;
      return set_fault(at, a, Rule::kReceivedIsSent,
                       fmt::format("{} is missing", to_string(other)));
    });
  }

  const Table& table_;
  bool has_transfers_;
  std::vector<int> rank_of_;        // [stages]
  std::vector<Item> items_;         // [stages x micro-batches]
  std::vector<StageOrder> orders_;  // [stages]
  std::optional<Fault> fault_;
};

}  // namespace

std::optional<Fault> verify(const Table& table) { return Verifier(table).find_first_fault(); }

}  // namespace strata::schedule
