#include "base/shared_limit.h"

#include <gtest/gtest.h>

#include <vector>

namespace strata {
namespace {

TEST(SharedLimit, OneAloneHasAll) {
  SharedLimit limit(100);
  EXPECT_TRUE(limit.take_only("a", 100));
  EXPECT_FALSE(limit.take_only("a", 1));
  limit.give("a", 1);
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
  limit.give("a", 90);
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
  limit.give("b", 0);
  EXPECT_EQ(limit.used(), 0);
}

// Sizes that no division fits: nobody is left with nothing but a share below one.
TEST(SharedLimit, TheRestOfADivisionIsAnybodys) {
  SharedLimit limit(5);
  limit.set_num_tenants(1000);
  EXPECT_TRUE(limit.take_only("a", 5));
  EXPECT_FALSE(limit.take_only("b", 1));
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
  SharedLimit::Share second = first.beside(5);
  ASSERT_TRUE(second);
  EXPECT_EQ(limit.used("a"), 9);
  EXPECT_EQ(second.most(), 10);
  EXPECT_FALSE(first.beside(2));
  EXPECT_FALSE(SharedLimit::Share().beside(1));
  first = {};
  EXPECT_EQ(limit.used("a"), 5);
}

}  // namespace
}  // namespace strata
