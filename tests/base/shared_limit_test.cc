// SPDX-License-Identifier: Apache-2.0
#include "base/shared_limit.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace strata {
namespace {

TEST(SharedLimit, OneAloneHasAll) {
  SharedLimit limit(100);
  EXPECT_TRUE(limit.take_only("a", 100));
  EXPECT_FALSE(limit.take_only("a", 1));
  limit.give_back("a", 1);
  EXPECT_TRUE(limit.take_only("a", 1));
  EXPECT_EQ(limit.used(), 100);
}

TEST(SharedLimit, WhoTakesAllLeavesTheOthersTheirPart) {
  SharedLimit limit(100);
  limit.set_num_tenants(5);
  int taken = 0;
  while (limit.take_only("a", 1)) ++taken;
  EXPECT_EQ(taken, 60);  // the common half, and its own part
  for (const char* tenant : {"b", "c", "d", "e"}) {
    EXPECT_TRUE(limit.take_only(tenant, 10)) << tenant;
    EXPECT_FALSE(limit.take_only(tenant, 1)) << tenant;
  }
  EXPECT_EQ(limit.used(), 100);
}

TEST(SharedLimit, TheDivisionFollowsTheNumberOfTenants) {
  SharedLimit limit(100);
  ASSERT_TRUE(limit.take_only("a", 90));
  limit.set_num_tenants(2);
  EXPECT_TRUE(limit.take_only("b", 25));
  EXPECT_FALSE(limit.take_only("b", 1));
  limit.give_back("a", 90);
  EXPECT_TRUE(limit.take_only("b", 50));
  EXPECT_EQ(limit.used("b"), 75);
}

TEST(SharedLimit, ASharesEndGivesItBack) {
  SharedLimit limit(10);
  {
    SharedLimit::Share share = limit.take("a", 4);
    ASSERT_TRUE(share);
    EXPECT_TRUE(share.resize(9));
    EXPECT_FALSE(share.resize(11));
    EXPECT_EQ(limit.used("a"), 9);
    EXPECT_FALSE(limit.take("a", 2));
    const SharedLimit::Share moved = std::move(share);
    EXPECT_EQ(limit.used(), 9);
  }
  EXPECT_EQ(limit.used(), 0);
}

TEST(SharedLimit, NothingIsAlwaysToBeHad) {
  SharedLimit limit(1);
  EXPECT_TRUE(limit.take_only("a", 0));
  limit.give_back("b", 0);
  EXPECT_EQ(limit.used(), 0);
}

// A limit of a few, and a floor below one of them.
TEST(SharedLimit, ASmallLimitIsThereForManyTenants) {
  SharedLimit limit(5);
  limit.set_num_tenants(1000);
  EXPECT_EQ(limit.own_part(), 1);
  EXPECT_EQ(limit.most(), 3);
  EXPECT_TRUE(limit.take_only("a", 3));
  EXPECT_FALSE(limit.take_only("a", 1));
  EXPECT_TRUE(limit.take_only("b", 1));
  EXPECT_TRUE(limit.take_only("c", 1));
  EXPECT_FALSE(limit.take_only("d", 1));
}

// 10,000 in the keys' file, 200 of them busy, two that take whatever they get: nobody is refused.
TEST(SharedLimit, WhoIsBusyDoesNotNoticeTwoWhoTakeAllTheyGet) {
  SharedLimit limit(256 << 20);
  limit.set_num_tenants(10'000);
  for (const char* hostile : {"x", "y"}) {
    while (limit.take_only(hostile, 16 << 20) || limit.take_only(hostile, 100)) {
    }
  }
  for (int i = 0; i < 200; ++i) {
    EXPECT_TRUE(limit.take_only(std::to_string(i), i < 4 ? 1 << 20 : 128 << 10)) << i;
  }
}

TEST(SharedLimit, OfManyEachHasTheFloorAndWhatIsFreeIsDivided) {
  SharedLimit limit(1 << 20);
  limit.set_num_tenants(100);
  EXPECT_EQ(limit.own_part(), 1 << 10);
  EXPECT_EQ(limit.most(), ((1 << 20) - (1 << 17)) * 2 / 3);
  int64_t last = limit.limit();
  for (int i = 0; i < 20; ++i) {  // each takes all that it gets: what is left becomes less
    const std::string tenant = "greedy" + std::to_string(i);
    while (limit.take_only(tenant, 1)) {
    }
    EXPECT_GE(limit.used(tenant), limit.own_part());
    EXPECT_LE(limit.used(tenant), last);
    last = limit.used(tenant);
  }
  for (int i = 0; i < 100; ++i) {
    const std::string tenant = "small" + std::to_string(i);
    EXPECT_TRUE(limit.take_only(tenant, 1 << 10)) << i;
    EXPECT_FALSE(limit.take_only(tenant, 1 << 10)) << i;
  }
  for (int i = 0; i < 20; ++i) {
    const std::string tenant = "greedy" + std::to_string(i);
    limit.give_back(tenant, limit.used(tenant));
  }
  EXPECT_TRUE(limit.take_only("small0", 400 << 10));
}

// Half a request is no use to anybody.
TEST(SharedLimit, OfManyEachIsSureOfARequest) {
  SharedLimit limit(8 << 20, 64 << 10);
  limit.set_num_tenants(100);
  EXPECT_EQ(limit.own_part(), 64 << 10);
  for (int i = 0; i < 6; ++i) {
    while (limit.take_only("greedy" + std::to_string(i), 64 << 10)) {
    }
  }
  for (int i = 0; i < 5; ++i)
    EXPECT_TRUE(limit.take_only("small" + std::to_string(i), 64 << 10)) << i;
  // Where the kept part holds none, the floor is what it has.
  SharedLimit small(8 << 10, 64 << 10);
  small.set_num_tenants(100);
  EXPECT_EQ(small.own_part(), 1 << 10);
}

// Somebody who holds all that anybody may leaves who must leave some the half of its own part.
TEST(SharedLimit, WhatIsLeftBehindIsNotAnothersToTake) {
  SharedLimit limit(3200);
  limit.set_num_tenants(16);
  while (limit.take_only("greedy", 1)) {
  }
  EXPECT_TRUE(limit.take("small", 50, 200));
  const SharedLimit::Share half = limit.take("small", 50, 200);
  EXPECT_TRUE(half);
  EXPECT_FALSE(limit.take("small", 1, 200));
  EXPECT_TRUE(limit.take("small", 50));
  limit.set_num_tenants(100);
  EXPECT_TRUE(limit.take("other", limit.own_part(), 200));
}

TEST(SharedLimit, ACopyIsTheSameLimit) {
  SharedLimit limit(10);
  SharedLimit copy = limit;
  ASSERT_TRUE(copy.take_only("a", 6));
  EXPECT_EQ(limit.used("a"), 6);
  EXPECT_FALSE(limit.take("a", 5));
}

TEST(SharedLimit, WhatLeavesRoomBehindItLeavesIt) {
  SharedLimit limit(100);
  limit.set_num_tenants(2);
  EXPECT_EQ(limit.own_part(), 25);
  EXPECT_EQ(limit.most(), 75);
  EXPECT_FALSE(limit.take("a", 70, 10));
  const SharedLimit::Share share = limit.take("a", 60, 15);
  EXPECT_TRUE(share);
  EXPECT_EQ(limit.used(), 60);  // the rest is left, not taken
  EXPECT_TRUE(limit.take_only("b", 40));
}

TEST(SharedLimit, ASharesSecondIsOfTheSameTenant) {
  SharedLimit limit(10);
  SharedLimit::Share first = limit.take("a", 4);
  SharedLimit::Share second = first.another(5);
  ASSERT_TRUE(second);
  EXPECT_EQ(limit.used("a"), 9);
  EXPECT_EQ(second.most(), 10);
  EXPECT_FALSE(first.another(2));
  EXPECT_FALSE(SharedLimit::Share().another(1));
  first = {};
  EXPECT_EQ(limit.used("a"), 5);
}

}  // namespace
}  // namespace strata
