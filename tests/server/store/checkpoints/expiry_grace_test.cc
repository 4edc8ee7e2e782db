// SPDX-License-Identifier: Apache-2.0
// What may go of what has expired, by a clock that may be wrong.
#include "server/store/checkpoints/expiry_grace.h"

#include <gtest/gtest.h>

namespace strata::server {
namespace {

TEST(ExpiryGrace, WhatExpiredGoesWhenTheGraceIsOver) {
  ExpiryGrace grace(100);
  EXPECT_LT(grace.update_and_get_cutoff(1000, 0), 0);
  EXPECT_LT(grace.update_and_get_cutoff(1050, 50), 0);
  EXPECT_LT(grace.update_and_get_cutoff(1099, 99), 0);
  EXPECT_EQ(grace.update_and_get_cutoff(1100, 100), 1000);
  EXPECT_EQ(grace.update_and_get_cutoff(1150, 150), 1050);
}

TEST(ExpiryGrace, AClockThatIsPutRightBeginsAnew) {
  ExpiryGrace grace(100);
  (void)grace.update_and_get_cutoff(9000, 0);  // a day ahead, say
  (void)grace.update_and_get_cutoff(1050, 50);
  EXPECT_EQ(grace.update_and_get_cutoff(9100, 100), 1050);
  EXPECT_EQ(grace.update_and_get_cutoff(9149, 149), 1050);
  EXPECT_EQ(grace.update_and_get_cutoff(9150, 150), 1050);
  EXPECT_EQ(grace.update_and_get_cutoff(9200, 200), 9100);
}

// Ahead between two looks that are told as one, and right at the second.
TEST(ExpiryGrace, OneThatIsRightForAMomentIsHeard) {
  ExpiryGrace grace(6400);
  (void)grace.update_and_get_cutoff(9'000'000, 0);
  (void)grace.update_and_get_cutoff(1050, 50);
  (void)grace.update_and_get_cutoff(9'000'099, 99);
  EXPECT_EQ(grace.update_and_get_cutoff(9'006'400, 6400), 1050);
}

TEST(ExpiryGrace, WithoutAGraceItIsTheClock) {
  ExpiryGrace grace(0);
  EXPECT_EQ(grace.update_and_get_cutoff(1000, 0), 1000);
  EXPECT_EQ(grace.update_and_get_cutoff(1001, 1), 1001);
  EXPECT_EQ(grace.update_and_get_cutoff(1001, 1), 1001);
}

}  // namespace
}  // namespace strata::server
