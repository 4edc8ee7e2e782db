// SPDX-License-Identifier: Apache-2.0
#include "schedule/walk.h"

#include <gtest/gtest.h>

#include "schedule/lower.h"
#include "tests/schedule/tables.h"

namespace strata::schedule {
namespace {

// Forward 1, backward 2, no transfers: the formulas of the papers.
double published_share(const Spec& spec) {
  const double p = spec.num_ranks, m = spec.num_microbatches, v = spec.num_chunks;
  const double d = spec.forwarding_delay;
  if (spec.kind == Kind::kZb1p) return (p - 1) / (3 * m + p - 1);
  return d * (p - 1) / (v * m + d * (p - 1));
}

// Interleaved forms reach theirs in whole rounds of p; with one chunk, zb1p (ZB-H1) needs as many
// micro-batches as make its rounds whole.
bool has_formula(const Spec& spec) {
  const bool is_whole = spec.num_microbatches % spec.num_ranks == 0;
  if (spec.kind == Kind::kZb1p) return is_whole && spec.num_chunks == 1;
  return spec.kind != Kind::kInterleaved || is_whole;
}

TEST(Walk, BubblesAreThoseOfThePublishedFormulas) {
  int count = 0;
  for (Spec spec : all_specs(8, 32, 4)) {
    if (!has_formula(spec)) continue;
    const bool can_wait =
        spec.kind == Kind::kCircular && spec.num_microbatches >= 2 * spec.num_ranks;
    for (spec.forwarding_delay = 1; spec.forwarding_delay <= (can_wait ? 2 : 1);
         ++spec.forwarding_delay) {
      const Table table = generate(spec);
      const Costs costs = ideal_costs(spec.forwarding_delay);
      ASSERT_NEAR(walk(table, costs).bubble_share, published_share(spec), 1e-9) << name_of(spec);
      ASSERT_NEAR(walk(lower(table, spec.forwarding_delay), costs).bubble_share,
                  published_share(spec), 1e-9)
          << name_of(spec);
      ++count;
    }
  }
  EXPECT_GT(count, 600);
}

TEST(Walk, EveryRankIsBusyForItsActions) {
  const Spec spec{.kind = Kind::kZb1p, .num_ranks = 3, .num_microbatches = 6, .num_chunks = 2};
  const Costs costs{.forward = 2, .input_grad = 3, .weight_grad = 0.5};
  for (const RankUse& rank : walk(generate(spec), costs).ranks) {
    EXPECT_DOUBLE_EQ(rank.busy, 6 * 2 * (2 + 3 + 0.5));
  }
}

// Two ranks, one micro-batch, by hand: 0F0 0..1, there by 1.5, 1F0 to 2.5, 1B0 to 4.5, there by
// 5.25, 0B0 to 7.25; 6 of 14.5 are work.
TEST(Walk, TransfersTakeTheirTime) {
  const Table table = generate({.num_ranks = 2});
  const Walk result = walk(table, {.send_forward = 0.5, .send_backward = 0.75});
  EXPECT_DOUBLE_EQ(result.time, 7.25);
  EXPECT_DOUBLE_EQ(result.bubble_share, 1 - 6 / 14.5);
  const std::vector<TimedSlot>& slots = result.ranks[1].slots;
  ASSERT_EQ(slots.size(), 2u);
  EXPECT_EQ(slots[1].slot, 1u);
  EXPECT_DOUBLE_EQ(slots[0].start, 1.5);
  EXPECT_DOUBLE_EQ(slots[0].end, 2.5);
  EXPECT_DOUBLE_EQ(slots[1].start, 2.5);
  EXPECT_DOUBLE_EQ(slots[1].end, 4.5);
}

TEST(Walk, ARankDoesOneThingAtATime) {
  for (const Spec& spec : all_specs(4, 8, 2)) {
    const Walk result = walk(lower(generate(spec)), ideal_costs());
    for (const RankUse& rank : result.ranks) {
      double busy = 0, last = 0;
      for (const TimedSlot& slot : rank.slots) {
        ASSERT_GE(slot.start, last) << name_of(spec);
        busy += slot.end - slot.start;
        last = slot.end;
      }
      ASSERT_DOUBLE_EQ(busy, rank.busy) << name_of(spec);
      ASSERT_LE(last, result.time) << name_of(spec);
    }
  }
}

TEST(Walk, PeaksOfLiveMicroBatches) {
  for (const Spec& spec : all_specs(6, 16, 3)) {
    const int p = spec.num_ranks, m = spec.num_microbatches, v = spec.num_chunks;
    const Walk result = walk(generate(spec), ideal_costs());
    for (int rank = 0; rank < p; ++rank) {
      const int peak = result.ranks[static_cast<size_t>(rank)].peak_live;
      const int per_round = m / std::max(1, m / p);
      switch (spec.kind) {
        case Kind::kGpipe:
        case Kind::kCircular:
          EXPECT_EQ(peak, v * m) << name_of(spec);
          break;
        case Kind::k1f1b:
          EXPECT_EQ(peak, std::min(m, p - rank)) << name_of(spec);
          break;
        case Kind::kInterleaved:  // the warm-up and one more
          EXPECT_EQ(peak, std::min(v * m, (v - 1) * per_round + 2 * (p - 1 - rank) + 1))
              << name_of(spec);
          break;
        case Kind::kZb1p:  // and `rank` that wait for their weight gradient: the same on all ranks
          EXPECT_EQ(peak, std::min(v * m, (v - 1) * per_round + p)) << name_of(spec);
          break;
      }
    }
  }
}

}  // namespace
}  // namespace strata::schedule
