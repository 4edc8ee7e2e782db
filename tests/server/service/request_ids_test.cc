// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/service/futures.h"

namespace strata::server {
namespace {

TEST(RequestIds, TellNothingOfOtherTenants) {
  RequestIds ids("secret", 3);
  const std::string first = ids.make("alice", false);
  for (int i = 0; i < 10; ++i) ids.make("bob", false);
  EXPECT_THAT(first, ::testing::StartsWith("r3-0-"));
  EXPECT_THAT(ids.make("alice", true), ::testing::StartsWith("s3-1-"));
  EXPECT_NE(ids.make("carol", false), first);  // of the same number
}

TEST(RequestIds, ProveTheirTenantAndBoot) {
  RequestIds ids("secret", 3);
  const std::string id = ids.make("alice", false), sample = ids.make("alice", true);
  EXPECT_EQ(ids.origin("alice", id), RequestIds::Origin::kThisBoot);
  EXPECT_EQ(ids.origin("bob", id), RequestIds::Origin::kForeign);
  EXPECT_EQ(ids.origin("alice", "r3-1-AAAAAAAAAAAAAAAAAAAA"), RequestIds::Origin::kForeign);
  const RequestIds next("secret", 4);
  EXPECT_EQ(next.origin("alice", id), RequestIds::Origin::kLostOther);
  EXPECT_EQ(next.origin("alice", sample), RequestIds::Origin::kLostSample);
}

}  // namespace
}  // namespace strata::server
