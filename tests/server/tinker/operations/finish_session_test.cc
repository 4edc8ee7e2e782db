// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "base/clock.h"
#include "tests/server/tinker/service/house.h"

namespace strata::server {
namespace {

// Ending one session does not walk through the samplers of all.
TEST(FinishSession, EndingASessionLooksAtItsOwnAlone) {
  House house;
  const auto sampler = [&](const std::string& session, int number) {
    return house.post("create_sampling_session",
                      R"({"session_id":")" + session + R"(","sampling_session_seq_id":)" +
                          std::to_string(number) + R"(,"base_model":"tiny"})");
  };
  const std::string crowd = house.session("alice");
  for (int i = 0; i < 20'000; ++i) ASSERT_EQ(sampler(crowd, i).status, 200);
  std::vector<std::string> few;
  for (int i = 0; i < 300; ++i) few.push_back(house.session());
  ASSERT_EQ(sampler(few[0], 0).status, 200);
  const double begin = now_seconds();
  for (const std::string& id : few) {
    ASSERT_EQ(house.post("sessions/" + id + "/finish", "{}").status, 200);
    ASSERT_EQ(house.post("sessions/" + id + "/finish", "{}").status, 200);
  }
  EXPECT_LT(now_seconds() - begin, 2.0);
  EXPECT_EQ(house.ended.size(), few.size());  // once each
  EXPECT_EQ(house.call("GET", "samplers/" + few[0] + ":sample:0").status, 400);
  EXPECT_EQ(house.call("GET", "samplers/" + crowd + ":sample:7").status, 200);
}

TEST(FinishSession, ALongDetailIsCutBetweenCharacters) {
  House house;
  const std::string session = house.session();
  std::string long_one = "x";
  while (long_one.size() < 4096) long_one += "\xc3\xa9";  // one of them ends at byte 4097
  const Response done =
      house.post("sessions/" + session + "/finish", R"({"detail":")" + long_one + "\"}");
  EXPECT_EQ(done.status, 200) << done.body;
  EXPECT_EQ(House::text(done, "detail"), long_one.substr(0, 4095));
}

// After a restart samplers live in the store until they are used again.
TEST(FinishSession, AReadOnlyKeyEndsNoSamplersOfBeforeARestart) {
  House house;
  const std::string session = house.session();
  SamplerRow sampler;
  sampler.id = session + ":sample:0";
  sampler.session_id = session;
  sampler.tenant = "alice";
  sampler.base_model = "tiny";
  house.store().ensure_sampler(sampler);
  const auto finish = [&](Scope scope) {
    return house.call("POST", "sessions/" + session + "/finish", "{}", "alice", {}, scope).status;
  };
  EXPECT_EQ(finish(Scope::kRead), 403);
  EXPECT_EQ(finish(Scope::kSample), 200);
}

}  // namespace
}  // namespace strata::server
