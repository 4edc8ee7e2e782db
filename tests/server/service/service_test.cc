// The service against a fake dispatch: time limits, faults of the store, and what they leave.
#include "server/service/service.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/clock.h"
#include "tests/server/service/house.h"

namespace strata::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(Service, ASilentSessionEnds) {
  House house({.session_timeout = 300});
  const std::string session = house.session();
  const double begin = now_seconds();
  for (int second = 0; second <= 310; ++second) house.service().tick(begin + second);
  EXPECT_THAT(house.ended, ElementsAre(session));
}

// A process that was frozen, or an I/O thread that hung, could not read a sign of life.
TEST(Service, AStandstillIsNoSilence) {
  House house({.session_timeout = 300});
  const std::string session = house.session();
  const double begin = now_seconds();
  house.service().tick(begin);
  house.service().tick(begin + 3600);
  EXPECT_THAT(house.ended, IsEmpty());
  EXPECT_EQ(house.excused, 3600);
  for (int second = 1; second <= 290; ++second) house.service().tick(begin + 3600 + second);
  EXPECT_THAT(house.ended, IsEmpty());
  for (int second = 291; second <= 310; ++second) house.service().tick(begin + 3600 + second);
  EXPECT_THAT(house.ended, ElementsAre(session));
}

}  // namespace
}  // namespace strata::server
