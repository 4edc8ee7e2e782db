// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "server/tinker/service/service.h"

namespace strata::server {
namespace {

TEST(Clock, ALateTickIsLagAndAStandstillIsTold) {
  Clock clock(100);
  EXPECT_FALSE(clock.has_ticked());
  EXPECT_EQ(clock.tick(100.1), 0.0);
  EXPECT_TRUE(clock.has_ticked());
  EXPECT_EQ(clock.tick(101.1), 0.0) << "a second late is late, and no standstill";
  EXPECT_NEAR(clock.lag(), 0.9, 1e-9);
  EXPECT_NEAR(clock.tick(104.1), 3.0, 1e-9);
  EXPECT_NEAR(clock.lag(), 2.9, 1e-9);
  EXPECT_NEAR(clock.age(105.0), 0.9, 1e-9);
}

TEST(Clock, AStandstillBeforeTheFirstTickIsOne) {
  Clock clock(100);
  EXPECT_NEAR(clock.tick(160), 60.0, 1e-9);
}

TEST(Clock, LagIsForgottenAfterTwentySeconds) {
  Clock clock(0);
  clock.tick(1.6);
  for (int i = 1; i <= 250; ++i) clock.tick(1.6 + 0.1 * i);
  EXPECT_LT(clock.lag(), 0.01);
}

TEST(Clock, TicksThatComeALittleLateAddNothingToAStandstill) {
  Clock clock(0);
  for (int i = 1; i <= 20; ++i) clock.tick(0.11 * i);
  clock.tick(9);
  EXPECT_LE(clock.behind(), 1.0);
}

TEST(Clock, OneStandstillAloneIsOverWhenItIsSeenAndManyAreNot) {
  Clock clock(0);
  clock.tick(60);
  EXPECT_LE(clock.behind(), 1.0);
  for (int i = 0; i < 4; ++i) clock.tick(60 + 3.0 * (i + 1));
  EXPECT_GT(clock.behind(), 1.5);
  for (int i = 1; i <= 10; ++i) clock.tick(72 + 0.1 * i);
  EXPECT_LT(clock.behind(), 0.1);
  for (int i = 0; i < 8; ++i) clock.tick(73 + 1.3 * (i + 1));
  EXPECT_GT(clock.behind(), 1.0) << "each only 1.2 s late";
}

}  // namespace
}  // namespace strata::server
