// SPDX-License-Identifier: Apache-2.0
#include "base/account.h"

#include <gtest/gtest.h>

#include <utility>

#include "tests/base/accounts.h"

namespace strata {
namespace {

using strata::testing::accounts_with;

TEST(Account, AChargeHoldsByUseAndItsEndGivesAllBack) {
  const Accounts accounts = accounts_with(Use::kBody, 100);
  {
    Charge charge = accounts.open("a");
    EXPECT_TRUE(charge.hold(Use::kBody, 60));
    EXPECT_TRUE(charge.hold(Use::kPoll, 1));
    EXPECT_FALSE(charge.hold(Use::kBody, 101));
    EXPECT_EQ(charge.held(Use::kBody), 60) << "what is too much changes nothing";
    EXPECT_TRUE(charge.hold(Use::kBody, 40));
    EXPECT_EQ(accounts.of(Use::kBody).used("a"), 40);
    EXPECT_EQ(charge.held_by_tenant(Use::kBody), 40);
    charge.release(Use::kBody);
    EXPECT_EQ(accounts.of(Use::kBody).used(), 0);
    EXPECT_EQ(accounts.of(Use::kPoll).used(), 1);
  }
  EXPECT_EQ(accounts.of(Use::kPoll).used(), 0);
}

TEST(Account, AChargeThatMovesIsGivenBackOnceByWhoHasItLast) {
  const Accounts accounts;
  Charge last;
  {
    Charge first = accounts.open("a");
    ASSERT_TRUE(first.hold(Use::kQueue, 7));
    last = std::move(first);
  }
  EXPECT_EQ(last.tenant(), "a");
  EXPECT_EQ(accounts.of(Use::kQueue).used("a"), 7);
  last = accounts.open("b");
  EXPECT_EQ(accounts.of(Use::kQueue).used(), 0);
}

TEST(Account, ATenantThatHoldsAllItCanLeavesOthersTheirPart) {
  const Accounts accounts = accounts_with(Use::kResult, 100, /*num_tenants=*/2);
  Charge greedy = accounts.open("a"), modest = accounts.open("b");
  EXPECT_FALSE(greedy.hold(Use::kResult, 76));
  EXPECT_TRUE(greedy.hold(Use::kResult, 75));
  EXPECT_TRUE(modest.hold(Use::kResult, 25));
  EXPECT_FALSE(greedy.another().hold(Use::kResult, 1));
}

TEST(Account, WhatLeavesNoSpareIsTooMuch) {
  const Accounts accounts = accounts_with(Use::kQueue, 100);
  Charge charge = accounts.open("a");
  EXPECT_FALSE(charge.hold(Use::kQueue, 90, /*spare=*/20));
  EXPECT_TRUE(charge.hold(Use::kQueue, 80, /*spare=*/20));
  EXPECT_TRUE(charge.hold(Use::kQueue, 10, /*spare=*/1000)) << "less is never too much";
}

}  // namespace
}  // namespace strata
