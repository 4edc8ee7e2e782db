// SPDX-License-Identifier: Apache-2.0
#include "data/batch_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "base/rng.h"

namespace strata::data {
namespace {

std::vector<int64_t> some_lengths(int64_t count, uint64_t seed) {
  std::vector<int64_t> lengths;
  const Counter counter{.seed = seed, .stream = 9};
  for (int64_t i = 0; i < count; ++i) {
    lengths.push_back(1 + static_cast<int64_t>(counter.uniform(static_cast<uint64_t>(i)) * 300));
  }
  return lengths;
}

std::vector<int64_t> flat(const StepPlan& plan) {
  std::vector<int64_t> all;
  for (const auto& pass : plan.passes) all.insert(all.end(), pass.begin(), pass.end());
  return all;
}

int64_t tokens_of(const std::vector<int64_t>& examples, const std::vector<int64_t>& lengths) {
  int64_t sum = 0;
  for (const int64_t i : examples) sum += lengths[static_cast<size_t>(i)];
  return sum;
}

// Values of a Python program with its own Philox: a change here would break every run that is to be
// resumed.
TEST(Shuffled, OrderIsFrozen) {
  EXPECT_EQ(shuffled_indices(10, 1, 5), (std::vector<int64_t>{7, 4, 9, 6, 5, 1, 2, 0, 3, 8}));
  EXPECT_EQ(shuffled_indices(10, 0, (uint64_t{1} << 40) + 3),
            (std::vector<int64_t>{9, 0, 3, 4, 8, 5, 2, 6, 7, 1}));
  EXPECT_TRUE(shuffled_indices(0, 1, 1).empty());
}

TEST(Shuffled, EveryPlaceIsEquallyLikely) {
  // 4000 shuffles of 5: each of 25 cells expects 800; 6 sigma is 6 * sqrt(800 * 0.8) = 152.
  int64_t counts[5][5] = {};
  for (uint64_t stream = 0; stream < 4000; ++stream) {
    const auto order = shuffled_indices(5, 3, stream);
    for (int place = 0; place < 5; ++place) ++counts[place][order[static_cast<size_t>(place)]];
  }
  for (const auto& row : counts) {
    for (const int64_t count : row) EXPECT_NEAR(static_cast<double>(count), 800, 152);
  }
}

// Of the two limits of a step the one that is met first ends it.
TEST(BatchPlan, AStepHasSoManyExamplesOrTokens) {
  const auto lengths = some_lengths(500, 2);
  BatchPlan plan(lengths, {.batch_tokens = 1000, .batch_size = 6, .epochs = 1, .seed = 4});
  int64_t by_size = 0, by_tokens = 0;
  for (int64_t step = 0; step + 1 < plan.num_steps(); ++step) {
    const std::vector<int64_t> now = flat(plan.plan_step(step));
    const std::vector<int64_t> next = flat(plan.plan_step(step + 1));
    const int64_t with_next = tokens_of(now, lengths) + lengths[static_cast<size_t>(next.front())];
    ASSERT_LE(std::ssize(now), 6);
    ASSERT_LE(tokens_of(now, lengths), 1000);
    ASSERT_TRUE(std::ssize(now) == 6 || with_next > 1000) << step;
    (std::ssize(now) == 6 ? by_size : by_tokens) += 1;
  }
  EXPECT_GT(by_size, 5);
  EXPECT_GT(by_tokens, 5);
}

TEST(BatchPlan, AnEpochTakesEachExampleOnceWithinBudgets) {
  const auto lengths = some_lengths(500, 1);
  const BatchPlanOptions options{.batch_tokens = 1000, .micro_tokens = 250, .epochs = 2, .seed = 4};
  BatchPlan plan(lengths, options);
  std::vector<std::vector<int64_t>> seen(2);
  for (int64_t s = 0; s < plan.num_steps(); ++s) {
    const StepPlan step = plan.plan_step(s);
    const auto examples = flat(step);
    ASSERT_FALSE(examples.empty());
    EXPECT_TRUE(tokens_of(examples, lengths) <= 1000 || examples.size() == 1);
    for (const auto& pass : step.passes) {
      ASSERT_FALSE(pass.empty());
      EXPECT_TRUE(tokens_of(pass, lengths) <= 250 || pass.size() == 1);
    }
    auto& epoch = seen[static_cast<size_t>(step.epoch)];
    epoch.insert(epoch.end(), examples.begin(), examples.end());
  }
  EXPECT_NE(seen[0], seen[1]);  // another order
  for (auto& epoch : seen) {
    std::sort(epoch.begin(), epoch.end());
    std::vector<int64_t> all(500);
    std::iota(all.begin(), all.end(), 0);
    EXPECT_EQ(epoch, all);
  }
}

TEST(BatchPlan, AStepIsAPureFunctionOfItsIndex) {
  const auto lengths = some_lengths(60, 2);
  const BatchPlanOptions options{.batch_tokens = 700, .micro_tokens = 300, .epochs = 3, .seed = 8};
  BatchPlan straight(lengths, options), jumping(lengths, options);
  for (int64_t s = straight.num_steps() - 1; s >= 0; --s) {
    const StepPlan backwards = jumping.plan_step(s);
    BatchPlan fresh(lengths, options);
    EXPECT_EQ(backwards.passes, fresh.plan_step(s).passes);
    EXPECT_EQ(backwards.epoch, fresh.plan_step(s).epoch);
  }
}

TEST(BatchPlan, StepsRunThroughAsManyEpochsAsNeeded) {
  const auto lengths = some_lengths(20, 3);
  BatchPlanOptions options{.batch_tokens = 600, .micro_tokens = 300, .epochs = 1, .seed = 1};
  const int64_t an_epoch = BatchPlan(lengths, options).num_steps();
  options.epochs = 4;
  BatchPlan by_epochs(lengths, options);
  options.steps = 3 * an_epoch;
  BatchPlan by_steps(lengths, options);
  EXPECT_EQ(by_steps.num_steps(), 3 * an_epoch);
  for (int64_t s = 0; s < std::min(by_steps.num_steps(), by_epochs.num_steps()); ++s) {
    EXPECT_EQ(by_steps.plan_step(s).passes, by_epochs.plan_step(s).passes);
  }
}

TEST(BatchPlan, MicroTokensDoNotChangeWhatAStepHolds) {
  const auto lengths = some_lengths(100, 5);
  BatchPlanOptions options{.batch_tokens = 900, .micro_tokens = 1, .seed = 2};
  BatchPlan one_each(lengths, options);
  options.micro_tokens = 1 << 20;
  BatchPlan one_pass(lengths, options);
  ASSERT_EQ(one_each.num_steps(), one_pass.num_steps());
  for (int64_t s = 0; s < one_each.num_steps(); ++s) {
    EXPECT_EQ(flat(one_each.plan_step(s)), flat(one_pass.plan_step(s)));
    EXPECT_EQ(one_pass.plan_step(s).passes.size(), 1u);
  }
}

TEST(BatchPlan, AnExampleLongerThanTheBudgetIsAStepOfItsOwn) {
  BatchPlan plan({5000}, {.batch_tokens = 10, .micro_tokens = 10});
  EXPECT_EQ(plan.num_steps(), 1);
  EXPECT_EQ(plan.plan_step(0).passes, (std::vector<std::vector<int64_t>>{{0}}));
}

TEST(EvalSplit, IsAPartitionAndKeepsSomethingToTrainOn) {
  const EvalSplit split = split_for_eval(100, 0.05, 7);
  EXPECT_EQ(split.eval.size(), 5u);
  std::set<int64_t> all(split.train.begin(), split.train.end());
  all.insert(split.eval.begin(), split.eval.end());
  EXPECT_EQ(all.size(), 100u);
  EXPECT_EQ(split_for_eval(100, 0.05, 7).eval, split.eval);
  EXPECT_NE(split_for_eval(100, 0.05, 8).eval, split.eval);
  EXPECT_TRUE(split_for_eval(100, 0, 7).eval.empty());
  EXPECT_EQ(split_for_eval(3, 0.05, 7).eval.size(), 1u);
  EXPECT_TRUE(split_for_eval(1, 0.5, 7).eval.empty());
  EXPECT_EQ(split_for_eval(2, 0.99, 7).train.size(), 1u);
}

}  // namespace
}  // namespace strata::data
