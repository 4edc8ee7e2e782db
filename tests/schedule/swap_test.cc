// SPDX-License-Identifier: Apache-2.0
// Which swaps of neighbours in a queue are legal, by the verifier and by an oracle of its own.
#include <gtest/gtest.h>

#include <map>

#include "schedule/lower.h"
#include "schedule/verify.h"
#include "tests/schedule/tables.h"

namespace strata::schedule {
namespace {

// The oracle, written without the verifier: a graph of all actions, whose edges
// are the queues and what an action takes from another, has no circle.
bool has_circle(const Table& table) {
  std::map<std::string, int> ids;
  std::vector<std::vector<int>> after;
  std::vector<int> num_before;
  const auto id = [&](const Action& a) {
    const bool makes_input_grad = is_backward(a.op);
    const Action key = makes_input_grad ? Action{Op::kBackward, a.stage, a.microbatch} : a;
    const auto [it, is_new] = ids.try_emplace(to_string(key), static_cast<int>(ids.size()));
    if (is_new) {
      after.emplace_back();
      num_before.push_back(0);
    }
    return it->second;
  };
  const auto edge = [&](int from, int to) {
    after[static_cast<size_t>(from)].push_back(to);
    ++num_before[static_cast<size_t>(to)];
  };
  const bool lowered = has_transfers(table);
  for (const std::vector<Slot>& row : table.rows) {
    for (size_t i = 0; i < row.size(); ++i) {
      const Action& a = row[i].parts[0];
      const int to = id(a);
      if (i > 0) edge(id(row[i - 1].parts[0]), to);
      const int m = a.microbatch;
      if (a.op == Op::kForward && a.stage > 0 && !lowered) {
        edge(id({Op::kForward, a.stage - 1, m}), to);
      }
      if (is_backward(a.op)) edge(id({Op::kForward, a.stage, m}), to);
      if (is_backward(a.op) && a.stage + 1 < table.num_stages && !lowered) {
        edge(id({Op::kBackward, a.stage + 1, m}), to);
      }
      if (a.op == Op::kWeightGrad) edge(id({Op::kBackward, a.stage, m}), to);
      if (a.op == Op::kSendForward) edge(id({Op::kForward, a.stage, m}), to);
      if (a.op == Op::kSendBackward) edge(id({Op::kBackward, a.stage, m}), to);
      if (a.op == Op::kRecvForward) {
        edge(id({Op::kSendForward, a.stage - 1, m}), to);
        edge(to, id({Op::kForward, a.stage, m}));
      }
      if (a.op == Op::kRecvBackward) {
        edge(id({Op::kSendBackward, a.stage + 1, m}), to);
        edge(to, id({Op::kBackward, a.stage, m}));
      }
    }
  }
  std::vector<int> ready;
  for (size_t i = 0; i < after.size(); ++i) {
    if (num_before[i] == 0) ready.push_back(static_cast<int>(i));
  }
  size_t num_done = 0;
  while (!ready.empty()) {
    const int node = ready.back();
    ready.pop_back();
    ++num_done;
    for (const int next : after[static_cast<size_t>(node)]) {
      if (--num_before[static_cast<size_t>(next)] == 0) ready.push_back(next);
    }
  }
  return num_done < after.size();
}

// Of one stage and kind, or of one channel and direction: what must stay in order.
bool keeps_order(const std::vector<int>& ranks, const Action& a, const Action& b) {
  if (is_transfer(a.op) != is_transfer(b.op)) return true;
  if (!is_transfer(a.op)) {
    if (a.stage != b.stage) return true;
    return !((a.op == Op::kForward && b.op == Op::kForward) ||
             (is_backward(a.op) && is_backward(b.op)) ||
             (has_weight_grad(a.op) && has_weight_grad(b.op)));
  }
  const auto peer = [&](const Action& x) {
    return ranks[static_cast<size_t>(counterpart(x).stage)];
  };
  return is_send(a.op) != is_send(b.op) || peer(a) != peer(b);
}

TEST(Verify, AcceptsASwapOfNeighboursExactlyWhenItIsLegal) {
  int num_legal = 0, num_illegal = 0;
  for (const Spec& spec : all_specs(3, 6, 2)) {
    if (spec.num_microbatches < 4) continue;
    for (const Table& table : {generate(spec), lower(generate(spec))}) {
      const std::vector<int> ranks = ranks_of_stages(table);
      for (size_t rank = 0; rank < table.rows.size(); ++rank) {
        for (size_t i = 1; i < table.rows[rank].size(); ++i) {
          Table swapped = table;
          std::vector<Slot>& row = swapped.rows[rank];
          std::swap(row[i - 1], row[i]);
          const bool is_legal =
              keeps_order(ranks, row[i].parts[0], row[i - 1].parts[0]) && !has_circle(swapped);
          const std::optional<Fault> fault = verify(swapped);
          ASSERT_EQ(!fault, is_legal) << (fault ? to_string(*fault) : "accepted") << "\n"
                                      << csv_text(swapped);
          ++(is_legal ? num_legal : num_illegal);
        }
      }
    }
  }
  EXPECT_GT(num_legal, 1000);
  EXPECT_GT(num_illegal, 1000);
}

}  // namespace
}  // namespace strata::schedule
