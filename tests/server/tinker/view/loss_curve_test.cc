// SPDX-License-Identifier: Apache-2.0
// LossCurve: what a point is made of, and that a long run stays within its memory and its range.
#include "server/tinker/view/loss_curve.h"

#include <gtest/gtest.h>

#include <cmath>

namespace strata::server {
namespace {

TEST(LossCurve, PassesBetweenTwoStepsCountTogether) {
  LossCurve curve;
  curve.add_loss(6.0, 2.0);
  curve.add_loss(2.0, 2.0);
  curve.finish_step(1);
  curve.add_loss(1.0, 4.0);
  curve.finish_step(2);
  ASSERT_EQ(curve.points().size(), 2u);
  EXPECT_EQ(curve.points()[0].step, 1);
  EXPECT_DOUBLE_EQ(curve.points()[0].loss, 2.0);
  EXPECT_DOUBLE_EQ(curve.points()[1].loss, 0.25);
}

TEST(LossCurve, StepsAndPassesThatSayNothingLeaveNoPoint) {
  LossCurve curve;
  curve.finish_step(1);
  curve.add_loss(5.0, 0.0);
  curve.add_loss(std::nan(""), 3.0);
  curve.finish_step(2);
  EXPECT_TRUE(curve.points().empty());
}

TEST(LossCurve, ALongRunStaysBoundedAndKeepsItsShape) {
  LossCurve curve(10);
  constexpr int kSteps = 1000;
  for (int step = 1; step <= kSteps; ++step) {
    curve.add_loss(2.0 * step, 2.0);  // the mean is the step
    curve.finish_step(step);
  }
  ASSERT_GE(curve.points().size(), 5u);
  ASSERT_LT(curve.points().size(), 10u);
  int64_t before = 0;
  for (const LossCurve::Point& point : curve.points()) {
    EXPECT_DOUBLE_EQ(point.loss, static_cast<double>(before + 1 + point.step) / 2.0);
    before = point.step;
  }
}

TEST(LossCurve, EvaluationsBehindOneStepAreOnePoint) {
  LossCurve curve;
  curve.add_evaluation(0, 6.0, 2.0);
  curve.add_evaluation(0, 1.0, 0.0);  // says nothing
  curve.add_evaluation(0, 2.0, 2.0);
  curve.add_evaluation(10, 3.0, 3.0);
  ASSERT_EQ(curve.points().size(), 2u);
  EXPECT_EQ(curve.points()[0].step, 0);
  EXPECT_DOUBLE_EQ(curve.points()[0].loss, 2.0);
  EXPECT_EQ(curve.points()[1].step, 10);
  EXPECT_DOUBLE_EQ(curve.points()[1].loss, 1.0);
}

TEST(LossCurve, ManyEvaluationsStayBounded) {
  LossCurve curve(10);
  for (int64_t step = 1; step <= 1000; ++step) curve.add_evaluation(step, 1.0, 1.0);
  EXPECT_LE(curve.points().size(), 10u);
  EXPECT_EQ(curve.points().back().step, 1000);
}

}  // namespace
}  // namespace strata::server
