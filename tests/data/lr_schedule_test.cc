// SPDX-License-Identifier: Apache-2.0
#include "data/lr_schedule.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace strata::data {
namespace {

struct Case {
  Schedule schedule;
  double
      rates[5];  // at steps 1, 4, 5, 12, 20 of 20, warm-up 4, peak 1e-3; from Python's math module
};

TEST(LearningRate, EqualsNumbersWorkedOutElsewhere) {
  constexpr Case kCases[] = {
      {Schedule::kConstant, {0.0002, 0.0008, 0.001, 0.001, 0.001}},
      {Schedule::kLinear, {0.0002, 0.0008, 0.001, 0.0005625, 6.25e-05}},
      {Schedule::kCosine, {0.0002, 0.0008, 0.001, 0.0005975451610080642, 9.607359798384786e-06}},
  };
  constexpr int64_t kSteps[] = {1, 4, 5, 12, 20};
  for (const Case& c : kCases) {
    const LrSchedule schedule{
        .schedule = c.schedule, .peak = 1e-3, .warmup_steps = 4, .num_steps = 20};
    for (int i = 0; i < 5; ++i) {
      EXPECT_NEAR(learning_rate(schedule, kSteps[i]), c.rates[i], 1e-18) << kSteps[i];
    }
  }
}

TEST(LearningRate, NeverZeroAndNeverAboveThePeak) {
  for (const Schedule kind : {Schedule::kConstant, Schedule::kLinear, Schedule::kCosine}) {
    for (const int64_t num_steps : {1, 2, 3, 7, 100}) {
      for (const int64_t warmup : {0, 1, 10, 1000}) {
        const LrSchedule schedule{
            .schedule = kind, .peak = 1, .warmup_steps = warmup, .num_steps = num_steps};
        bool reached = false;
        for (int64_t step = 1; step <= num_steps; ++step) {
          const double rate = learning_rate(schedule, step);
          EXPECT_GT(rate, 0) << step << " of " << num_steps;
          EXPECT_LE(rate, 1);
          reached = reached || rate == 1;
        }
        EXPECT_TRUE(reached) << num_steps << " " << warmup;
      }
    }
  }
}

TEST(ParseSchedule, NamesTheChoices) {
  EXPECT_EQ(parse_lr_schedule("linear"), Schedule::kLinear);
  try {
    parse_lr_schedule("step");
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "--lr-schedule: got 'step', want constant, linear or cosine");
  }
}

}  // namespace
}  // namespace strata::data
