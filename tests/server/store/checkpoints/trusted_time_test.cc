// SPDX-License-Identifier: Apache-2.0
// When a wall clock that jumps is believed.
#include "server/store/checkpoints/trusted_time.h"

#include <gtest/gtest.h>

namespace strata::server {
namespace {

constexpr double kGrace = 100;

TEST(TrustedTime, OneThatIsAheadIsBelievedAfterTheGrace) {
  TrustedTime time;
  EXPECT_EQ(time.update_and_get_time(1000, 0, kGrace), 1000);
  EXPECT_EQ(time.update_and_get_time(5010, 10, kGrace), 1010);
  EXPECT_EQ(time.update_and_get_time(5109, 109, kGrace), 1109);
  EXPECT_EQ(time.update_and_get_time(5110, 110, kGrace), 5110);
  EXPECT_EQ(time.update_and_get_time(5120, 120, kGrace), 5120);
}

TEST(TrustedTime, TheGraceBeginsAnewWhenItIsPutRight) {
  TrustedTime time;
  EXPECT_EQ(time.update_and_get_time(1000, 0, kGrace), 1000);
  EXPECT_EQ(time.update_and_get_time(5010, 10, kGrace), 1010);
  EXPECT_EQ(time.update_and_get_time(1090, 90, kGrace), 1090);
  EXPECT_EQ(time.update_and_get_time(5100, 100, kGrace), 1100);
  EXPECT_EQ(time.update_and_get_time(5199, 199, kGrace), 1199);
}

TEST(TrustedTime, OneThatGoesBackOrDriftsIsBelievedAtOnce) {
  TrustedTime time;
  EXPECT_EQ(time.update_and_get_time(1000, 0, kGrace), 1000);
  EXPECT_EQ(time.update_and_get_time(1000 + TrustedTime::kMostDrift + 1, 1, kGrace), 1061);
  EXPECT_EQ(time.update_and_get_time(500, 2, kGrace), 500);
}

}  // namespace
}  // namespace strata::server
