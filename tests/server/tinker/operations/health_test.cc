// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/clock.h"
#include "tests/server/tinker/service/house.h"

namespace strata::server {
namespace {

using ::testing::HasSubstr;

TEST(Health, ReadinessIsNotLife) {
  House house;
  EXPECT_THAT(house.call("GET", "readyz").body, HasSubstr("loading"));
  const double now = now_seconds();
  house.service().tick(now);
  EXPECT_EQ(house.call("GET", "readyz").status, 200);
  EXPECT_THAT(house.service().why_not_ready(now + 6), HasSubstr("tick is 6.0 s old"));
  house.service().begin_shutdown();
  const Response draining = house.call("GET", "readyz");
  EXPECT_EQ(draining.status, 503);
  EXPECT_THAT(draining.body, HasSubstr("draining"));
  EXPECT_EQ(house.call("GET", "healthz").status, 200);
}

}  // namespace
}  // namespace strata::server
