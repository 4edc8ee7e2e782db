// SPDX-License-Identifier: Apache-2.0
// Who gets how much of a sampling step.
#include "engine/sampling/step_planner.h"

#include <gtest/gtest.h>

#include <vector>

namespace strata::engine {
namespace {

std::vector<StepClaim> shared(std::vector<StepClaim> claims, int64_t room, uint64_t turn = 0) {
  divide_step_tokens(claims, room, turn);
  return claims;
}

int64_t granted(const StepClaim& claim) { return claim.granted_decoding + claim.granted_prompt; }

TEST(StepShare, OneOwnerHasTheWholeStepAndAllItsRows) {
  for (const int64_t room : {1, 2, 5, 64}) {
    const auto got = shared({{.decoding = 7, .prompt = 100}}, room)[0];
    EXPECT_EQ(got.granted_decoding, 7) << room;
    EXPECT_EQ(got.granted_prompt, std::max(room - 7, (room + 3) / 4)) << room;
  }
  EXPECT_EQ(shared({{.decoding = 7, .prompt = 3}}, 64)[0].granted_prompt, 3);
}

// Who asks for little gets it whatever the others ask for; the rest is shared evenly.
TEST(StepShare, SmallClaimsAreMetAndLargeOnesAreEven) {
  const auto got = shared({{.decoding = 256, .prompt = 4000},
                           {.decoding = 1},
                           {.prompt = 9},
                           {.decoding = 3, .prompt = 5000}},
                          100);
  EXPECT_EQ(got[1].granted_decoding, 1);
  EXPECT_EQ(got[2].granted_prompt, 9);
  EXPECT_EQ(granted(got[0]) + granted(got[3]), 90);
  EXPECT_LE(std::abs(granted(got[0]) - granted(got[3])), 1);
  EXPECT_EQ(got[3].granted_decoding, 3);  // before its prompt
  EXPECT_GT(got[0].granted_prompt, 0);    // a full batch does not hold prompts up
  EXPECT_GT(got[0].granted_decoding, got[0].granted_prompt);
}

// With fewer tokens than owners they take turns.
TEST(StepShare, NoneIsAlwaysLast) {
  std::vector<int64_t> sums(5);
  for (uint64_t turn = 0; turn < 50; ++turn) {
    const auto got = shared(std::vector<StepClaim>(5, {.decoding = 2, .prompt = 3}), 2, turn);
    int64_t sum = 0;
    for (size_t i = 0; i < got.size(); ++i) {
      sums[i] += granted(got[i]);
      sum += granted(got[i]);
    }
    EXPECT_EQ(sum, 2);
  }
  for (const int64_t sum : sums) EXPECT_EQ(sum, 20);
}

TEST(StepShare, NeverMoreThanTheRoomOrTheClaim) {
  for (int64_t room = 1; room < 40; ++room) {
    for (int64_t size = 0; size < 30; ++size) {
      const std::vector<StepClaim> asked = {
          {.decoding = size, .prompt = 30 - size}, {.decoding = size / 2}, {.prompt = size / 3}};
      const auto got = shared(asked, room, static_cast<uint64_t>(size));
      int64_t sum = 0, wanted = 0;
      for (size_t i = 0; i < got.size(); ++i) {
        EXPECT_LE(got[i].granted_decoding, asked[i].decoding);
        EXPECT_LE(got[i].granted_prompt, asked[i].prompt);
        sum += granted(got[i]);
        wanted += asked[i].decoding + asked[i].prompt;
      }
      EXPECT_EQ(sum, std::min(room, wanted)) << room << " " << size;
    }
  }
}

TEST(StepBudget, ShrinksToWhatFitsItsTimeAndGrowsBack) {
  StepBudget budget;
  const int64_t start = budget.tokens();
  budget.adapt(start, 4 * StepBudget::kSeconds);
  EXPECT_EQ(budget.tokens(), start / 4);
  budget.adapt(budget.tokens(), 100.0);
  EXPECT_EQ(budget.tokens(), StepBudget::kLeast);
  budget.adapt(1, 0.001);  // says nothing of a full step
  EXPECT_EQ(budget.tokens(), StepBudget::kLeast);
  for (int i = 0; i < 20; ++i) budget.adapt(budget.tokens(), 0.001);
  EXPECT_EQ(budget.tokens(), StepBudget::kMost);
}

}  // namespace
}  // namespace strata::engine
