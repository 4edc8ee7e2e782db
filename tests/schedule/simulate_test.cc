// SPDX-License-Identifier: Apache-2.0
#include "schedule/simulate.h"

#include <gtest/gtest.h>

#include "schedule/lower.h"
#include "schedule/walk.h"
#include "tests/schedule/tables.h"

namespace strata::schedule {
namespace {

// Stages that are alike, whose micro-batches have a token each: a forward of 1 s, a backward of 2.
std::vector<StageWork> equal_stages(const Table& table, double state_bytes = 1.0,
                                    double grad_bytes = 1.0) {
  const StageWork work = {.forward_s = 1.0,
                          .input_grad_s = 1.0,
                          .weight_grad_s = 1.0,
                          .state_bytes = state_bytes,
                          .grad_bytes = grad_bytes};
  return std::vector<StageWork>(static_cast<size_t>(table.num_stages), work);
}

std::vector<std::vector<int64_t>> one_round(int num_microbatches, int64_t tokens = 1) {
  return {std::vector<int64_t>(static_cast<size_t>(num_microbatches), tokens)};
}

Table lowered(Kind kind, int num_ranks, int num_microbatches) {
  return lower(
      generate({.kind = kind, .num_ranks = num_ranks, .num_microbatches = num_microbatches}));
}

TEST(Simulate, BubblesOverFreeLinksAreThoseOfTheFormula) {
  for (const Kind kind : {Kind::kGpipe, Kind::k1f1b}) {
    for (const int p : {1, 2, 4, 7}) {
      for (const int m : {1, 4, 9}) {
        const Table table = lowered(kind, p, m);
        const Simulation step =
            simulate({.table = table, .stages = equal_stages(table), .rounds = one_round(m)});
        EXPECT_NEAR(step.bubble_share, (p - 1.0) / (m + p - 1.0), 1e-12) << p << " " << m;
        EXPECT_NEAR(step.seconds, 3.0 * (m + p - 1), 1e-9) << p << " " << m;
      }
    }
  }
}

// Where bytes take no time, a message is a delay, as it is of a walk.
TEST(Simulate, EveryScheduleTakesAsLongAsItsWalk) {
  int count = 0;
  for (const Spec& spec : all_specs(5, 10, 3)) {
    const Table table = lower(generate(spec), spec.forwarding_delay);
    const Simulation step = simulate({.table = table,
                                      .stages = equal_stages(table),
                                      .rounds = one_round(spec.num_microbatches),
                                      .links = {.link = {.latency_s = 0.25}}});
    const Walk walked = walk(table, {.send_forward = 0.25, .send_backward = 0.25});
    ASSERT_NEAR(step.seconds, walked.time, 1e-9) << name_of(spec);
    ASSERT_NEAR(step.bubble_share, walked.bubble_share, 1e-9) << name_of(spec);
    ++count;
  }
  EXPECT_GT(count, 100);
}

// Two ranks, two micro-batches, states of 6 bytes and gradients of 1 over a link of 2 bytes a
// second and 0.25 s. Rank 0 has 0F0 at 1 and 0F1 at 2; the states leave by 4 and by 7, and arrive
// at 4.25 and 7.25. Rank 1: 1F0 to 5.25, 1F1 to 8.25, 1B0 to 10.25, 1B1 to 12.25; the gradients
// arrive at 10.25 + 0.5 + 0.25 = 11 and at 13. Rank 0: 0B0 to 13, 0B1 to 15.
TEST(Simulate, ARanksMessagesLeaveOneBehindTheOther) {
  const Table table = lowered(Kind::kGpipe, 2, 2);
  const Simulation step =
      simulate({.table = table,
                .stages = equal_stages(table, /*state_bytes=*/6.0, /*grad_bytes=*/1.0),
                .rounds = one_round(2),
                .links = {.link = {.latency_s = 0.25, .bytes_per_s = 2.0}},
                .keeps_spans = true});
  EXPECT_DOUBLE_EQ(step.seconds, 15.0);
  EXPECT_DOUBLE_EQ(step.bubble_share, 1.0 - 12.0 / 30.0);
  EXPECT_DOUBLE_EQ(step.ranks[0].transfer_s, 2 * 3.25);
  EXPECT_DOUBLE_EQ(step.ranks[1].transfer_s, 2 * 0.75);
  EXPECT_DOUBLE_EQ(step.ranks[0].boundary_bytes, 12.0);
  EXPECT_DOUBLE_EQ(step.ranks[1].boundary_bytes, 2.0);
  EXPECT_DOUBLE_EQ(step.ranks[1].end_s, 12.25);
  const std::vector<SimulatedSpan>& spans = step.ranks[1].spans;
  ASSERT_EQ(spans.size(), 4u);
  EXPECT_EQ(to_string(spans[1].action), "1F1");
  EXPECT_DOUBLE_EQ(spans[1].start_s, 7.25);
  EXPECT_DOUBLE_EQ(spans[1].end_s, 8.25);
}

// Four ranks in two nodes: of three borders the middle one is between nodes, and is crossed by a
// state and by a gradient.
TEST(Simulate, LinksBetweenNodesAreTheirOwn) {
  const Table table = lowered(Kind::kGpipe, 4, 1);
  SimulationSpec spec = {.table = table,
                         .stages = equal_stages(table),
                         .rounds = one_round(1),
                         .links = {.link = {.latency_s = 0.5}, .node_link = {.latency_s = 10.0}}};
  EXPECT_DOUBLE_EQ(simulate(spec).seconds, 12.0 + 6 * 0.5);
  spec.links.ranks_per_node = 2;
  EXPECT_DOUBLE_EQ(simulate(spec).seconds, 12.0 + 4 * 0.5 + 2 * 10.0);
  spec.links.ranks_per_node = 1;
  EXPECT_DOUBLE_EQ(simulate(spec).seconds, 12.0 + 6 * 10.0);
  spec.links.ranks_per_node = 4;
  EXPECT_DOUBLE_EQ(simulate(spec).seconds, 12.0 + 6 * 0.5);
}

// Micro-batches take as long as they have tokens: gpipe on one rank of 1, 3 and 2 tokens.
TEST(Simulate, TokensAreWhatTakesTime) {
  const Table table = lowered(Kind::kGpipe, 1, 3);
  const Simulation step =
      simulate({.table = table, .stages = equal_stages(table), .rounds = {{1, 3, 2}, {4}}});
  EXPECT_DOUBLE_EQ(step.seconds, 3.0 * 10);
  EXPECT_DOUBLE_EQ(step.bubble_share, 0.0);
}

// Ranks that are one here wait in a backward of 4 tokens for each other's turns, or until the
// others of a chain have done so many tokens, and for messages.
TEST(Simulate, RanksThatGoTogetherWaitForEachOthersTurns) {
  const Table table = lowered(Kind::kGpipe, 1, 1);
  std::vector<StageWork> works = equal_stages(table);
  works[0].turns_s = 3.0;
  SimulationSpec spec = {.table = table, .stages = works, .rounds = {{4}}, .alike = 3};
  EXPECT_DOUBLE_EQ(simulate(spec).seconds, 3.0 * 4 + 3.0 * 4);
  spec.stages[0].turns_s = 0.0;
  spec.stages[0].chain_s = 3.0;
  spec.stages[0].chain_tokens = 2.0;
  EXPECT_DOUBLE_EQ(simulate(spec).seconds, 3.0 * 4 + 3.0 * 2);
  spec.stages[0].forward_wait_s = 0.25;
  spec.stages[0].backward_wait_s = 0.5;
  spec.stages[0].forward_latency_s = 10.0;
  spec.stages[0].backward_latency_s = 20.0;
  const Simulation step = simulate(spec);
  EXPECT_DOUBLE_EQ(step.seconds, 3.0 * 4 + 3.0 * 2 + 0.75 * 4 + 30.0);
  EXPECT_DOUBLE_EQ(step.ranks[0].compute_s, 3.0 * 4);
  EXPECT_DOUBLE_EQ(step.ranks[0].transfer_s, 0.75 * 4 + 30.0);
  // Of data ranks the waiting of a part is in its turn.
  spec.data = 2;
  spec.rounds = {{4, 4}};
  spec.gradients = {{.num_parts = 2, .bytes = 0.0}};
  const double backward = 2.0 * 4 + 3.0 * 2 + 0.5 * 4 + 20.0;
  EXPECT_DOUBLE_EQ(simulate(spec).seconds, step.seconds + backward / 2);
}

// A rank of two nodes each with two ranks that go together: a state and its gradient cross nodes,
// and what those of a node send each other does not.
TEST(Simulate, RanksThatGoTogetherHaveTheirOwnPlacesOnNodes) {
  const Table table = lowered(Kind::kGpipe, 2, 1);
  SimulationSpec spec = {.table = table,
                         .stages = equal_stages(table),
                         .rounds = one_round(1),
                         .alike = 2,
                         .before_step = {{.among = Exchange::Among::kAlike, .bytes = {0.0, 6.0}}},
                         .links = {.link = {.latency_s = 0.5, .bytes_per_s = 2.0},
                                   .node_link = {.latency_s = 10.0},
                                   .ranks_per_node = 2}};
  const Simulation step = simulate(spec);
  EXPECT_DOUBLE_EQ(step.seconds, 6.0 + 2 * 10.0);
  EXPECT_DOUBLE_EQ(step.ranks[1].end_s, 1.0 + 10.0 + 3.0 + 0.5 + 3.0);
  EXPECT_DOUBLE_EQ(step.ranks[1].exchanged_bytes, 6.0);
  spec.links.ranks_per_node = 4;
  EXPECT_DOUBLE_EQ(simulate(spec).ranks[1].end_s, 1.0 + 0.5 + 0.5 + 3.0 + 0.5 + 3.0);
}

// Backwards of n data ranks over free links run a part apart: the last one ends n - 1 parts later.
TEST(Simulate, AChainOfGradientsRunsAPartApart) {
  const Table table = lowered(Kind::kGpipe, 1, 1);
  for (const int n : {2, 3, 4096}) {
    for (const int parts : {1, 61}) {
      const Simulation step = simulate({.table = table,
                                        .stages = equal_stages(table),
                                        .rounds = one_round(n),
                                        .data = n,
                                        .gradients = {{.num_parts = parts, .bytes = 1.0}}});
      EXPECT_NEAR(step.seconds, 1.0 + 2.0 + (n - 1) * 2.0 / parts, 1e-9) << n << " " << parts;
      EXPECT_NEAR(step.ranks[0].compute_s, 3.0, 1e-12);
    }
  }
}

// A quarter of a backward is recomputing, before the turn: ranks are apart by the rest of a part.
TEST(Simulate, WhatIsRecomputedWaitsForNoTurn) {
  const Table table = lowered(Kind::kGpipe, 1, 1);
  std::vector<StageWork> works = equal_stages(table);
  works[0].recompute_s = 0.5;
  for (const int n : {1, 2, 9}) {
    for (const int parts : {1, 4}) {
      const Simulation step = simulate({.table = table,
                                        .stages = works,
                                        .rounds = one_round(n),
                                        .data = n,
                                        .gradients = {{.num_parts = parts, .bytes = 1.0}}});
      EXPECT_NEAR(step.seconds, 1.0 + 2.0 + (n - 1) * 1.5 / parts, 1e-9) << n << " " << parts;
      EXPECT_NEAR(step.ranks[0].compute_s, 3.0, 1e-12);
    }
  }
}

// Two data ranks, one micro-batch each, two parts of 4 bytes over 4 bytes a second and 0.5 s: a
// part takes 1 s to compute, 1 to leave and 0.5 on its way. Rank 0 ends its parts at 2 and 3; they
// arrive at 3.5 and 4.5, and rank 1 ends its own at 4.5 and 5.5. Back they go to rank 0 by 6 and 7.
TEST(Simulate, GradientsGoOnPartByPartAndThenToAll) {
  const Table table = lowered(Kind::kGpipe, 1, 1);
  SimulationSpec spec = {.table = table,
                         .stages = equal_stages(table),
                         .rounds = one_round(2),
                         .data = 2,
                         .gradients = {{.num_parts = 2, .bytes = 8.0}},
                         .links = {.link = {.latency_s = 0.5, .bytes_per_s = 4.0}},
                         .keeps_spans = true};
  const Simulation step = simulate(spec);
  EXPECT_DOUBLE_EQ(step.ranks[0].spans[1].end_s, 3.0);
  EXPECT_DOUBLE_EQ(step.ranks[1].spans[1].end_s, 5.5);
  EXPECT_DOUBLE_EQ(step.ranks[0].end_s, 7.0);
  EXPECT_DOUBLE_EQ(step.seconds, 7.0);
  EXPECT_DOUBLE_EQ(step.ranks[0].gradient_bytes, 8.0);
  EXPECT_DOUBLE_EQ(step.ranks[1].gradient_bytes, 8.0);
  EXPECT_DOUBLE_EQ(step.ranks[1].transfer_s, 2 * 1.5);
  // Where each owns a half, half of each part goes back: by 5.5 + 0.5 + 0.5.
  spec.owns_shares = true;
  const Simulation owned = simulate(spec);
  EXPECT_DOUBLE_EQ(owned.ranks[0].end_s, 6.5);
  EXPECT_DOUBLE_EQ(owned.ranks[1].gradient_bytes, 4.0);
}

// Of a second round of one micro-batch the other rank has nothing, and gets what was made.
TEST(Simulate, RoundsAreDealtOutFromTheFirstRank) {
  const Table table = lowered(Kind::kGpipe, 1, 1);
  const Simulation step = simulate({.table = table,
                                    .stages = equal_stages(table),
                                    .rounds = {{1, 1}, {1}},
                                    .data = 2,
                                    .gradients = {{.num_parts = 1, .bytes = 1.0}},
                                    .links = {.link = {.latency_s = 0.5}},
                                    .keeps_spans = true});
  // Rank 1 ends its backward at 3.5 + 2; what it made is with rank 0 by 6, after its forward.
  EXPECT_DOUBLE_EQ(step.ranks[1].spans[1].end_s, 5.5);
  ASSERT_EQ(step.ranks[0].spans.size(), 4u);
  EXPECT_EQ(to_string(step.ranks[0].spans[3].action), "0B2");
  EXPECT_DOUBLE_EQ(step.ranks[0].spans[3].end_s, 8.0);
  EXPECT_DOUBLE_EQ(step.ranks[1].end_s, 8.5);
  EXPECT_DOUBLE_EQ(step.ranks[1].compute_s, 3.0);
}

// Two stages of two data ranks: each stage has a chain of its own, and the first one's begins when
// the last one's gradient is back.
TEST(Simulate, PipelinesOfSeveralDataRanksHaveAChainForEachStage) {
  const Table table = lowered(Kind::kGpipe, 2, 1);
  const Simulation step = simulate({.table = table,
                                    .stages = equal_stages(table),
                                    .rounds = one_round(2),
                                    .data = 2,
                                    .gradients = {{.num_parts = 2}, {.num_parts = 2}}});
  // Rank 2 of data 0: F to 2, B to 4; rank 3: B to 5. Rank 0: B 4 to 6; rank 1: 5 to 7.
  EXPECT_DOUBLE_EQ(step.ranks[2].end_s, 5.0);
  EXPECT_DOUBLE_EQ(step.ranks[1].end_s, 7.0);
  EXPECT_DOUBLE_EQ(step.seconds, 7.0);
  EXPECT_DOUBLE_EQ(step.bubble_share, 1.0 - 12.0 / 28.0);
}

// Norms are gathered before the step, which takes each rank its own time, and what one has made
// goes to another behind it.
TEST(Simulate, ExchangesAndStepsComeBehindThePasses) {
  const Table table = lowered(Kind::kGpipe, 2, 1);
  const Simulation step = simulate(
      {.table = table,
       .stages = equal_stages(table),
       .rounds = one_round(1),
       .before_step = {{.among = Exchange::Among::kPipeline, .bytes = {1.0, 1.0}}},
       .after_step = {{.among = Exchange::Among::kPipeline, .bytes = {4.0, 4.0}, .receiver = 1}},
       .step_s = {3.0, 5.0},
       .links = {.link = {.latency_s = 1.0}}});
  // Passes end at 5 (rank 1) and 8 (rank 0, which has the gradient at 5 + 1 of a state that came at
  // 2); the sums by 9, so steps end at 11 or more.
  const double end_of_0 = 1 + 1 + 3 + 1 + 2;
  EXPECT_DOUBLE_EQ(step.ranks[0].end_s, end_of_0 + 3);
  EXPECT_DOUBLE_EQ(step.ranks[1].end_s, end_of_0 + 1 + 5);
  EXPECT_DOUBLE_EQ(step.ranks[0].exchanged_bytes, 5.0);
  EXPECT_DOUBLE_EQ(step.ranks[1].exchanged_bytes, 1.0);
  EXPECT_DOUBLE_EQ(step.ranks[0].compute_s, 6.0);
}

TEST(Simulate, DataRanksExchangeAmongThoseOfTheirStage) {
  const Table table = lowered(Kind::kGpipe, 1, 1);
  const Simulation step =
      simulate({.table = table,
                .stages = equal_stages(table),
                .rounds = one_round(3),
                .data = 3,
                .gradients = {{.num_parts = 1}},
                .after_step = {{.among = Exchange::Among::kData, .bytes = {6.0}}},
                .links = {.link = {.latency_s = 0.0, .bytes_per_s = 3.0}}});
  // The last backward ends at 7, and its rank sends to two others for 2 s each.
  EXPECT_DOUBLE_EQ(step.seconds, 7.0 + 4.0);
  EXPECT_DOUBLE_EQ(step.ranks[0].exchanged_bytes, 12.0);
}

}  // namespace
}  // namespace strata::schedule
