// SPDX-License-Identifier: Apache-2.0
#include "trainer/curves.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <regex>

namespace strata::apps {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::vector<report::MetricsRecord> run_of(int steps, double first_loss) {
  std::vector<report::MetricsRecord> records = {
      {.step = 0, .numbers = {{"eval_loss", first_loss}}}};
  for (int step = 1; step <= steps; ++step) {
    records.push_back({.step = step,
                       .numbers = {{"loss", first_loss / step},
                                   {"lr", 1e-3 * (1 - double(step) / (steps + 1))},
                                   {"grad_norm", 2.0 + step % 3}}});
  }
  return records;
}

TEST(TrainingCurves, HasLossLearningRateAndGradientNorm) {
  const std::string svg = training_curves_svg(run_of(40, 4));
  for (const char* text : {">loss<", ">loss in nats per token, log scale<", ">learning rate<",
                           ">gradient norm before clipping<", ">norm<", ">4e-4<", ">evaluation<"}) {
    EXPECT_THAT(svg, HasSubstr(text));
  }
  EXPECT_THAT(svg, HasSubstr("height=\"920\""));
  // The rates begin above the axis's left end, below the evaluation of step 0: 708 pixels of 40.
  EXPECT_THAT(svg, HasSubstr("d=\"M89.7 "));
}

TEST(TrainingCurves, ANarrowRangeIsLinearAndNothingIsNothing) {
  const auto flat = run_of(2, 4);
  EXPECT_THAT(training_curves_svg(flat), Not(HasSubstr("log scale")));
  for (const auto& records :
       {std::vector<report::MetricsRecord>{}, {{.step = 0, .numbers = {{"eval_loss", 2}}}}}) {
    const std::string svg = training_curves_svg(records);
    EXPECT_THAT(svg, HasSubstr(">gradient norm before clipping<"));
    EXPECT_THAT(svg, Not(HasSubstr("nan")));
  }
}

}  // namespace
}  // namespace strata::apps
