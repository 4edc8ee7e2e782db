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

ServiceOptions session_timeout(double seconds) {
  ServiceOptions options;
  options.session_timeout = seconds;
  return options;
}

TEST(Service, ASilentSessionEnds) {
  House house(session_timeout(300));
  const std::string session = house.session();
  const double begin = now_seconds();
  for (int second = 0; second <= 310; ++second) house.service().tick(begin + second);
  EXPECT_THAT(house.ended, ElementsAre(session));
}

// A process that was frozen, or an I/O thread that hung, could not read a sign of life.
TEST(Service, AStandstillIsNoSilence) {
  House house(session_timeout(300));
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

// A full disk or a database that is away: everything that needs no store goes on, and what does is
// done when it is back.
TEST(Service, AStoreThatIsAwayStopsNoTimer) {
  House house(session_timeout(20));
  const std::string session = house.session();
  const std::string model = house.model(session);
  const Response step = house.post("optim_step", R"({"model_id":")" + model + R"(","seq_id":1})");
  ASSERT_EQ(step.status, 200) << step.body;
  EXPECT_EQ(house.poll(House::text(step, "request_id")).status, 0);  // parked
  double now = now_seconds();
  house.service().tick(now);
  EXPECT_EQ(house.call("GET", "readyz").status, 200);
  house.faults().away = true;
  for (int second = 0; second < 29; ++second) house.service().tick(++now);
  EXPECT_EQ(house.service().futures().num_parked(), 1);
  for (int second = 0; second < 3; ++second) house.service().tick(++now);
  EXPECT_EQ(house.service().futures().num_parked(), 0);  // answered 408
  EXPECT_EQ(house.service().num_sessions(), 1u);         // its end could not be written
  EXPECT_EQ(house.call("GET", "healthz").status, 200);
  EXPECT_THAT(house.service().unready(now), HasSubstr("away"));
  EXPECT_THAT(house.watch().metrics().text({}, {}),
              HasSubstr("strata_faults_total{step=\"end_session\"}"));
  house.faults().away = false;
  for (int second = 0; second < 12; ++second) house.service().tick(++now);
  EXPECT_THAT(house.ended, ElementsAre(session));
  EXPECT_EQ(house.service().unready(now), "");
}

TEST(Service, ReadinessIsNotLife) {
  House house;
  EXPECT_THAT(house.call("GET", "readyz").body, HasSubstr("loading"));
  const double now = now_seconds();
  house.service().tick(now);
  EXPECT_EQ(house.call("GET", "readyz").status, 200);
  EXPECT_THAT(house.service().unready(now + 6), HasSubstr("tick is 6.0 s old"));
  house.service().begin_shutdown();
  const Response draining = house.call("GET", "readyz");
  EXPECT_EQ(draining.status, 503);
  EXPECT_THAT(draining.body, HasSubstr("draining"));
  EXPECT_EQ(house.call("GET", "healthz").status, 200);
}

}  // namespace
}  // namespace strata::server
