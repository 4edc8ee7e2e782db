// SPDX-License-Identifier: Apache-2.0
#include "schedule/verify.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "schedule/lower.h"
#include "tests/schedule/tables.h"

namespace strata::schedule {
namespace {

using testing::HasSubstr;
using Rows = std::vector<std::vector<Slot>>;

struct Expected {
  int rank = 0, slot = 0;
  std::string action;
};

// Breaks one rule of a table, at a place that `random` chooses; nothing where it cannot.
using Mutation = std::optional<Expected> (*)(Table& table, std::mt19937& random);

size_t below(std::mt19937& random, size_t count) { return random() % count; }

// A random place whose action `accept` takes.
struct Found {
  size_t rank = 0, slot = 0;
  Action action;
};
template <typename Accept>
std::optional<Found> find(const Table& table, std::mt19937& random, const Accept& accept) {
  std::vector<Found> found;
  for (size_t rank = 0; rank < table.rows.size(); ++rank) {
    const std::vector<Slot>& row = table.rows[rank];
    for (size_t slot = 0; slot < row.size(); ++slot) {
      if (accept(row[slot].parts[0])) found.push_back({rank, slot, row[slot].parts[0]});
    }
  }
  if (found.empty()) return {};
  return found[below(random, found.size())];
}

// Where an action stands in its row; the row's length when it does not.
size_t slot_of(const std::vector<Slot>& row, const Action& action) {
  size_t slot = 0;
  while (slot < row.size() && row[slot].parts[0] != action) ++slot;
  return slot;
}
size_t slot_of_backward(const std::vector<Slot>& row, int stage, int microbatch) {
  return std::min(slot_of(row, {Op::kBackward, stage, microbatch}),
                  slot_of(row, {Op::kInputGrad, stage, microbatch}));
}

// Takes the action at `from` to stand at `to`, counted in the row without it.
void move(std::vector<Slot>& row, size_t from, size_t to) {
  const Slot slot = row[from];
  row.erase(row.begin() + static_cast<std::ptrdiff_t>(from));
  row.insert(row.begin() + static_cast<std::ptrdiff_t>(to), slot);
}

Expected at(size_t rank, size_t slot, const Action& action) {
  return {static_cast<int>(rank), static_cast<int>(slot), to_string(action)};
}

std::optional<Expected> number_out_of_range(Table& table, std::mt19937& random) {
  const auto found = find(table, random, [](const Action&) { return true; });
  Action& action = table.rows[found->rank][found->slot].parts[0];
  (random() % 2 == 0 ? action.stage : action.microbatch) =
      std::max(table.num_stages, table.num_microbatches) + static_cast<int>(random() % 3);
  return at(found->rank, found->slot, action);
}

// Is a neighbour of the stage on its rank? Then moving the stage's actions may break the rule about
// predecessors as well.
bool has_neighbour(const Table& table, const Action& action) {
  const std::vector<int> ranks = ranks_of_stages(table);
  const auto stage = static_cast<size_t>(action.stage);
  return (stage > 0 && ranks[stage - 1] == ranks[stage]) ||
         (stage + 1 < ranks.size() && ranks[stage + 1] == ranks[stage]);
}

std::optional<Expected> on_another_rank(Table& table, std::mt19937& random) {
  if (has_transfers(table) || table.num_ranks() < 2) return {};
  const auto found = find(table, random, [](const Action& a) { return has_weight_grad(a.op); });
  if (found->rank + 1 == table.rows.size() || has_neighbour(table, found->action)) return {};
  const size_t to = found->rank + 1 + below(random, table.rows.size() - found->rank - 1);
  table.rows[to].emplace_back(found->action);
  std::vector<Slot>& row = table.rows[found->rank];
  row.erase(row.begin() + static_cast<std::ptrdiff_t>(found->slot));
  return at(to, table.rows[to].size() - 1, found->action);
}

std::optional<Expected> twice(Table& table, std::mt19937& random) {
  const auto found = find(table, random, [](const Action&) { return true; });
  std::vector<Slot>& row = table.rows[found->rank];
  const size_t to = found->slot + 1 + below(random, row.size() - found->slot);
  row.insert(row.begin() + static_cast<std::ptrdiff_t>(to), Slot(found->action));
  return at(found->rank, to, found->action);
}

std::optional<Expected> both_forms_of_a_backward(Table& table, std::mt19937& random) {
  const auto found = find(table, random, [](const Action& a) { return a.op == Op::kWeightGrad; });
  if (!found) return {};
  const Action action{Op::kBackward, found->action.stage, found->action.microbatch};
  table.rows[found->rank].emplace_back(action);
  return at(found->rank, table.rows[found->rank].size() - 1, action);
}

std::optional<Expected> two_of_a_kind_at_once(Table& table, std::mt19937& random) {
  const auto found = find(table, random, [](const Action& a) { return a.op == Op::kForward; });
  std::vector<Slot>& row = table.rows[found->rank];
  if (found->slot + 1 == row.size()) return {};
  const Action next = row[found->slot + 1].parts[0];
  const bool is_wrong = !is_backward(next.op) || next.microbatch == found->action.microbatch;
  if (!is_wrong) return {};
  row[found->slot] = Slot(found->action, next);
  row.erase(row.begin() + static_cast<std::ptrdiff_t>(found->slot) + 1);
  return Expected{static_cast<int>(found->rank), static_cast<int>(found->slot),
                  to_string(row[found->slot])};
}

std::optional<Expected> backward_first(Table& table, std::mt19937& random) {
  if (has_transfers(table)) return {};
  const auto found = find(table, random, [](const Action& a) { return is_backward(a.op); });
  if (has_neighbour(table, found->action)) return {};
  std::vector<Slot>& row = table.rows[found->rank];
  const Action forward{Op::kForward, found->action.stage, found->action.microbatch};
  move(row, slot_of(row, forward), found->slot);
  return at(found->rank, found->slot - 1, found->action);
}

std::optional<Expected> weight_grad_first(Table& table, std::mt19937& random) {
  const auto found = find(table, random, [](const Action& a) { return a.op == Op::kWeightGrad; });
  if (!found) return {};
  std::vector<Slot>& row = table.rows[found->rank];
  const size_t to = slot_of(row, {Op::kInputGrad, found->action.stage, found->action.microbatch});
  move(row, found->slot, to);
  return at(found->rank, to, found->action);
}

// The one before must have set the direction, and everything that both need must stand before.
std::optional<Expected> out_of_order(Table& table, std::mt19937& random) {
  if (has_transfers(table)) return {};
  const auto found = find(table, random, [&](const Action& a) {
    return (a.op == Op::kForward || a.op == Op::kBackward) && a.microbatch > 0 &&
           a.microbatch + 1 < table.num_microbatches;
  });
  if (!found || has_neighbour(table, found->action)) return {};
  std::vector<Slot>& row = table.rows[found->rank];
  Action next = found->action;
  ++next.microbatch;
  const size_t later = slot_of(row, next);
  const size_t own_backward = slot_of_backward(row, found->action.stage, found->action.microbatch);
  const size_t next_forward = slot_of(row, {Op::kForward, next.stage, next.microbatch});
  if (next.op == Op::kForward ? own_backward < later : next_forward > found->slot) return {};
  std::swap(row[found->slot], row[later]);
  return at(found->rank, later, found->action);
}

// Stages s and s + 1 on one rank: the second's forward, or the first's backward, goes first.
std::optional<Expected> before_its_predecessor(Table& table, std::mt19937& random) {
  if (has_transfers(table)) return {};
  const std::vector<int> ranks = ranks_of_stages(table);
  const auto found = find(table, random, [&](const Action& a) {
    if (a.op != Op::kForward && !is_backward(a.op)) return false;
    const int other = a.stage + (a.op == Op::kForward ? -1 : 1);
    if (other < 0 || other == table.num_stages) return false;
    return ranks[static_cast<size_t>(other)] == ranks[static_cast<size_t>(a.stage)];
  });
  if (!found) return {};
  std::vector<Slot>& row = table.rows[found->rank];
  const Action& a = found->action;
  const size_t to = a.op == Op::kForward ? slot_of(row, {Op::kForward, a.stage - 1, a.microbatch})
                                         : slot_of_backward(row, a.stage + 1, a.microbatch);
  // Further up than its own forward it would break that rule instead.
  if (is_backward(a.op) && slot_of(row, {Op::kForward, a.stage, a.microbatch}) > to) return {};
  move(row, found->slot, to);
  return at(found->rank, to, a);
}

std::optional<Expected> sent_before_it_is_computed(Table& table, std::mt19937& random) {
  const auto found = find(table, random, [](const Action& a) { return is_send(a.op); });
  if (!found) return {};
  std::vector<Slot>& row = table.rows[found->rank];
  const Action& a = found->action;
  const size_t to = a.op == Op::kSendForward ? slot_of(row, {Op::kForward, a.stage, a.microbatch})
                                             : slot_of_backward(row, a.stage, a.microbatch);
  move(row, found->slot, to);
  return at(found->rank, to, a);
}

std::optional<Expected> received_after_its_use(Table& table, std::mt19937& random) {
  const auto found = find(table, random, [](const Action& a) {
    return a.op == Op::kRecvForward || a.op == Op::kRecvBackward;
  });
  if (!found) return {};
  std::vector<Slot>& row = table.rows[found->rank];
  const Action& a = found->action;
  const size_t use = a.op == Op::kRecvForward ? slot_of(row, {Op::kForward, a.stage, a.microbatch})
                                              : slot_of_backward(row, a.stage, a.microbatch);
  const Action used = row[use].parts[0];
  move(row, found->slot, use);
  return at(found->rank, use - 1, used);
}

std::optional<Expected> not_sent(Table& table, std::mt19937& random) {
  const auto found = find(table, random, [](const Action& a) { return is_send(a.op); });
  if (!found) return {};
  std::vector<Slot>& row = table.rows[found->rank];
  row.erase(row.begin() + static_cast<std::ptrdiff_t>(found->slot));
  const Action other = counterpart(found->action);
  for (size_t rank = 0; rank < table.rows.size(); ++rank) {
    const size_t slot = slot_of(table.rows[rank], other);
    if (slot < table.rows[rank].size()) return at(rank, slot, other);
  }
  return {};
}

// A send goes behind the next one on its channel.
std::optional<Expected> out_of_the_channels_order(Table& table, std::mt19937& random) {
  const auto found = find(table, random, [](const Action& a) { return is_send(a.op); });
  if (!found) return {};
  std::vector<Slot>& row = table.rows[found->rank];
  const std::vector<int> ranks = ranks_of_stages(table);
  const auto peer = [&](const Action& a) {
    return ranks[static_cast<size_t>(counterpart(a).stage)];
  };
  for (size_t slot = found->slot + 1; slot < row.size(); ++slot) {
    const Action& next = row[slot].parts[0];
    if (!is_send(next.op) || peer(next) != peer(found->action)) continue;
    const size_t rank = static_cast<size_t>(peer(next));
    move(row, found->slot, slot);
    const Action other = counterpart(found->action);
    return at(rank, slot_of(table.rows[rank], other), other);
  }
  return {};
}

std::optional<Expected> left_away(Table& table, std::mt19937& random) {
  if (has_transfers(table)) return {};
  const auto found = find(table, random, [](const Action& a) { return has_weight_grad(a.op); });
  if (has_neighbour(table, found->action)) return {};
  std::vector<Slot>& row = table.rows[found->rank];
  row.erase(row.begin() + static_cast<std::ptrdiff_t>(found->slot));
  return at(found->rank, row.size(), found->action);
}

std::optional<Expected> forward_left_away(Table& table, std::mt19937& random) {
  const auto found = find(table, random, [](const Action& a) { return a.op == Op::kForward; });
  std::vector<Slot>& row = table.rows[found->rank];
  row.erase(row.begin() + static_cast<std::ptrdiff_t>(found->slot));
  return at(found->rank, row.size(), found->action);
}

// Where all forwards come first, a rank whose first backward comes earlier waits for ranks that
// wait for its forwards; so do those before it, of which rank 0 is the one that is named.
std::optional<Expected> circle(Table& table, std::mt19937& random) {
  const auto num_forwards = static_cast<size_t>(table.num_microbatches);
  if (has_transfers(table) || table.num_ranks() < 2 || table.num_stages != table.num_ranks()) {
    return {};
  }
  for (size_t i = 0; i < num_forwards; ++i) {
    if (table.rows.back()[i].parts[0].op != Op::kForward) return {};
  }
  const size_t rank = below(random, table.rows.size() - 1);
  const size_t to = 1 + below(random, num_forwards - 1);
  move(table.rows[rank], num_forwards, to);
  return at(0, rank == 0 ? to : num_forwards, {Op::kBackward, 0, 0});
}

// Rank 0's first receive before anything that it sends.
std::optional<Expected> circle_of_receives(Table& table, std::mt19937& random) {
  const auto found =
      find(table, random, [](const Action& a) { return a == Action{Op::kRecvBackward, 0, 0}; });
  if (!found || found->rank != 0 || table.num_stages != table.num_ranks()) return {};
  move(table.rows[0], found->slot, below(random, 2));
  const size_t slot = slot_of(table.rows[0], found->action);
  return at(0, slot, found->action);
}

constexpr struct {
  Rule rule;
  Mutation mutate;
} kMutations[] = {
    {Rule::kRange, number_out_of_range},
    {Rule::kOneRank, on_another_rank},
    {Rule::kOnce, twice},
    {Rule::kOnce, both_forms_of_a_backward},
    {Rule::kOnePlace, two_of_a_kind_at_once},
    {Rule::kForwardFirst, backward_first},
    {Rule::kInputGradFirst, weight_grad_first},
    {Rule::kInOrder, out_of_order},
    {Rule::kPredecessorFirst, before_its_predecessor},
    {Rule::kSentIsComputed, sent_before_it_is_computed},
    {Rule::kReceivedFirst, received_after_its_use},
    {Rule::kReceivedIsSent, not_sent},
    {Rule::kChannelOrder, out_of_the_channels_order},
    {Rule::kComplete, left_away},
    {Rule::kComplete, forward_left_away},
    {Rule::kDeadlock, circle},
    {Rule::kDeadlock, circle_of_receives},
};

std::vector<Table> sound_tables() {
  std::vector<Table> tables;
  for (const Spec& spec : all_specs(/*max_ranks=*/4, /*max_microbatches=*/8, /*max_chunks=*/3)) {
    if (spec.num_microbatches < 3) continue;
    tables.push_back(generate(spec));
    tables.push_back(lower(tables.back()));
  }
  for (const char* name : {"zbv_2_4.csv", "zbv_3_7.csv", "zbv_4_10.csv"}) {
    tables.push_back(without_idle(pytorch_table(name)));
  }
  return tables;
}

// Each of 1,700 tables breaks one rule: the verifier names it, and where.
TEST(Verify, NamesTheRuleAndThePlaceOfEveryMutation) {
  constexpr int kEach = 100;
  const std::vector<Table> tables = sound_tables();
  std::mt19937 random(17);
  for (const auto& mutation : kMutations) {
    int made = 0;
    for (int tries = 0; made < kEach && tries < 100 * kEach; ++tries) {
      Table table = tables[below(random, tables.size())];
      const std::optional<Expected> want = mutation.mutate(table, random);
      if (!want) continue;
      ++made;
      const std::optional<Fault> fault = verify(table);
      ASSERT_TRUE(fault) << rule_text(mutation.rule) << "\n" << csv_text(table);
      ASSERT_EQ(rule_text(fault->rule), rule_text(mutation.rule)) << to_string(*fault) << "\n"
                                                                  << csv_text(table);
      ASSERT_EQ(fault->action, want->action) << to_string(*fault) << "\n" << csv_text(table);
      ASSERT_EQ(fault->rank, want->rank) << to_string(*fault) << "\n" << csv_text(table);
      ASSERT_EQ(fault->slot, want->slot) << to_string(*fault) << "\n" << csv_text(table);
    }
    EXPECT_EQ(made, kEach) << rule_text(mutation.rule);
  }
}

// PyTorch's other schedules: two chunks a rank on the way there and back, weight gradients apart,
// forwards and backwards that overlap, descending backwards.
TEST(Verify, AcceptsTablesOfPyTorch) {
  for (const char* name :
       {"circular_4_8_2.csv", "interleaved_4_8_2.csv", "zb1p_4_8_2.csv", "zbv_2_4.csv",
        "zbv_3_7.csv", "zbv_4_10.csv", "dualpipev_2_4.csv", "dualpipev_3_7.csv",
        "dualpipev_4_10.csv", "interleaved_with_transfers_4_8_2.csv"}) {
    const Table table = pytorch_table(name);
    const std::optional<Fault> fault = verify(table);
    EXPECT_FALSE(fault) << name << ": " << to_string(*fault);
    if (has_transfers(table)) continue;
    const std::optional<Fault> lowered = verify(lower(table));
    EXPECT_FALSE(lowered) << name << ": " << to_string(*lowered);
  }
}

TEST(Verify, SaysWhereWhatAndWhy) {
  const struct {
    const char* csv;
    int num_stages, num_microbatches;
    const char* what;
  } kCases[] = {
      {"0F0,0B0,0B1,0F1", 1, 2,
       "rank 0, slot 2, 0B1: breaks 'a forward comes before its backward': 0F1 does not stand "
       "before it"},
      {"0F0,0B0\n1F0", 2, 1,
       "rank 1, slot 1, 1B0: breaks 'every stage computes every micro-batch': 1B0 is missing"},
      {"0F0,0B0", 2, 1,
       "rank 0, slot 2, 1F0: breaks 'every stage computes every micro-batch': 1F0 is missing"},
      {"0F0,0B0,0F1\n1F0,1F1,1B0,1B1", 2, 2, "0B1 is missing"},
      {"0F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1", 2, 2,
       "rank 0, slot 1, 0B0: breaks 'no rank waits for what waits for it': it waits for 1B0"},
      {"0F0,(0F1;0B1)OVERLAP_F_B", 1, 2,
       "rank 0, slot 1, (0F1;0B1)OVERLAP_F_B: breaks 'a micro-batch is in one place at a time'"},
      {"0F0,0SEND_F0,0B0", 1, 1, "there is no stage 1: it has nobody to talk to"},
      {"0F0,0SEND_F0,1RECV_F0,1F0,1B0,0B0", 2, 1,
       "stage 1 is on the same rank, where nothing is sent"},
      {"0F0,0B0\n1RECV_F0,1F0,1B0", 2, 1, "0RECV_B0 does not stand before it"},
      {",", 1, 1, "0F0 is missing"},
  };
  for (const auto& c : kCases) {
    Table table = read_csv(c.csv, "t").table;
    table.num_stages = c.num_stages;
    table.num_microbatches = c.num_microbatches;
    const std::optional<Fault> fault = verify(table);
    ASSERT_TRUE(fault) << c.csv;
    EXPECT_THAT(to_string(*fault), HasSubstr(c.what)) << c.csv;
  }
  EXPECT_TRUE(verify({}));
}

// Numbers that a table cannot fill must not decide how much memory is asked for.
TEST(Verify, HugeNumbersCostNothing) {
  Table table = read_csv("999999F999999", "t").table;
  const std::optional<Fault> fault = verify(table);
  ASSERT_TRUE(fault);
  EXPECT_EQ(fault->rule, Rule::kComplete);
  EXPECT_EQ(fault->action, "0F0");
}

}  // namespace
}  // namespace strata::schedule
