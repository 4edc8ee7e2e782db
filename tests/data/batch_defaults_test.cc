// SPDX-License-Identifier: Apache-2.0
// How many steps a run has where nobody said: by sizes of data from a few examples to many.
#include "data/batch_defaults.h"

#include <gtest/gtest.h>

#include "data/batch_plan.h"

namespace strata::data {
namespace {

struct Case {
  int64_t examples, tokens_each;
  int64_t batch_size, epochs, least_steps, most_steps;
};

int64_t steps_of(const BatchChoice& choice, int64_t examples, int64_t tokens_each) {
  return BatchPlan(std::vector<int64_t>(static_cast<size_t>(examples), tokens_each),
                   {.batch_tokens = *choice.batch_tokens > 0 ? *choice.batch_tokens : INT64_MAX,
                    .batch_size = *choice.batch_size,
                    .epochs = *choice.epochs})
      .num_steps();
}

TEST(BatchDefaults, FollowTheData) {
  const Case cases[] = {
      {1, 40, 1, 10, 10, 10},            // as often as makes sense, and no oftener
      {3, 40, 1, 10, 30, 30},            //
      {10, 40, 1, 6, 60, 60},            //
      {50, 40, 2, 3, 75, 75},            //
      {400, 40, 8, 3, 150, 150},         //
      {5'000, 40, 8, 2, 1250, 1250},     // as much again teaches less
      {100'000, 40, 32, 1, 3125, 3125},  // once is enough
      {50, 2'000, 2, 3, 75, 75},         // long texts: few of them
      {400, 2'000, 8, 3, 300, 300},      // no more tokens a step than 8192
      {5'000, 2'000, 8, 1, 1250, 1250},  //
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(testing::Message() << c.examples << " examples of " << c.tokens_each);
    const BatchChoice choice = fill_batch_defaults({}, c.examples, c.examples * c.tokens_each);
    EXPECT_EQ(choice.batch_size, c.batch_size);
    EXPECT_EQ(choice.batch_tokens, kBatchTokens);
    EXPECT_EQ(choice.epochs, c.epochs);
    const int64_t steps = steps_of(choice, c.examples, c.tokens_each);
    EXPECT_GE(steps, c.least_steps);
    EXPECT_LE(steps, c.most_steps);
  }
}

// Any number of examples has 60 steps, but where that would be more than ten epochs.
TEST(BatchDefaults, AreEnoughStepsWhereTheDataAllowIt) {
  for (int64_t examples = 1; examples < 2'000; ++examples) {
    for (const int64_t tokens : {1, 40, 3'000, 20'000}) {
      const BatchChoice choice = fill_batch_defaults({}, examples, examples * tokens);
      EXPECT_GE(steps_of(choice, examples, tokens), std::min(kLeastSteps, kMostEpochs * examples))
          << examples;
      EXPECT_LE(*choice.epochs, kMostEpochs);
    }
  }
}

TEST(BatchDefaults, WhatIsGivenStays) {
  // Epochs alone: batches are as small as it takes.
  EXPECT_EQ(fill_batch_defaults({.epochs = 1}, 230, 9'200).batch_size, 2);
  EXPECT_EQ(fill_batch_defaults({.epochs = 1}, 230, 9'200).epochs, 1);
  // A batch alone: as many epochs as it takes, and no limit that was not asked for.
  const BatchChoice sized = fill_batch_defaults({.batch_size = 16}, 230, 9'200);
  EXPECT_EQ(sized.batch_size, 16);
  EXPECT_EQ(sized.batch_tokens, 0);
  EXPECT_EQ(sized.epochs, 4);
  const BatchChoice tokens = fill_batch_defaults({.batch_tokens = 512}, 230, 9'200);
  EXPECT_EQ(tokens.batch_size, 0);
  EXPECT_EQ(tokens.batch_tokens, 512);
  EXPECT_EQ(tokens.epochs, 4);  // of at least 18 steps
  EXPECT_EQ(fill_batch_defaults({.batch_tokens = 8192}, 230, 9'200).epochs, kMostEpochs);
  const BatchChoice all =
      fill_batch_defaults({.batch_size = 7, .batch_tokens = 99, .epochs = 5}, 230, 9'200);
  EXPECT_EQ(all.batch_size, 7);
  EXPECT_EQ(all.batch_tokens, 99);
  EXPECT_EQ(all.epochs, 5);
}

}  // namespace
}  // namespace strata::data
