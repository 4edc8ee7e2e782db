// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/server/tinker/service/house.h"

namespace strata::server {
namespace {

using ::testing::HasSubstr;

// create_session needs the store: 503 with Retry-After while that is away, and then it works.
TEST(CreateSession, WhatNeedsTheStoreIsToldToComeAgain) {
  House house;
  house.faults().away = true;
  const Response refused = house.post("create_session", "{}");
  EXPECT_EQ(refused.status, 503);
  EXPECT_EQ(refused.headers.at(0).name, "retry-after");
  EXPECT_THAT(refused.body, ::testing::Not(HasSubstr("injected")));
  house.faults().away = false;
  EXPECT_NE(house.session(), "");
}

TEST(CreateSession, AServerThatStopsSaysWhenToComeAgain) {
  House house;
  house.service().begin_shutdown();
  const Response refused = house.post("create_session", "{}");
  EXPECT_EQ(refused.status, 503);
  EXPECT_EQ(refused.headers.at(0).name, "retry-after");
}

TEST(CreateSession, LongIdempotencyKeysAreNotCut) {
  House house;
  const auto make = [&](const std::string& key, const std::string& body) {
    return house.call("POST", "create_session", body, "alice", {{"x-idempotency-key", key}});
  };
  const std::string key(256, 'k');
  const Response first = make(key + "1", "{}");
  EXPECT_EQ(make(key + "1", "{}").body, first.body);
  EXPECT_EQ(make(key + "1", R"({"tags":["t"]})").status, 409);
  const Response second = make(key + "2", R"({"tags":["t"]})");
  EXPECT_EQ(second.status, 200);
  EXPECT_NE(second.body, first.body);
}

TEST(CreateSession, SessionsAndSamplersHaveLimits) {
  ServiceOptions options;
  options.max_sessions = 2;
  options.max_samplers = 3;
  House house(options);
  const std::string session = house.session();
  house.session();
  const Response third = house.post("create_session", "{}");
  EXPECT_EQ(third.status, 429);
  EXPECT_THAT(third.body, HasSubstr("--max-sessions-per-tenant"));
  EXPECT_NE(house.session("bob"), "");
  for (int i = 0; i < 5; ++i) {
    const Response made =
        house.post("create_sampling_session", R"({"session_id":")" + session +
                                                  R"(","sampling_session_seq_id":)" +
                                                  std::to_string(i) + R"(,"base_model":"tiny"})");
    EXPECT_EQ(made.status, i < 3 ? 200 : 400);
    if (i >= 3) {
      EXPECT_THAT(made.body, HasSubstr("--max-samplers-per-session"));
    }
  }
  house.post("sessions/" + session + "/finish", "{}");
  EXPECT_NE(house.session(), "");
}

// A read-only key may watch, and not lock out those who train.
TEST(CreateSession, AKeyWithoutRightsLeavesAPartOfTheSessions) {
  ServiceOptions options;
  options.max_sessions = 8;
  House house(options);
  const auto make = [&](Scope scope) {
    return house.call("POST", "create_session", "{}", "alice", {}, scope).status;
  };
  for (int i = 0; i < 6; ++i) EXPECT_EQ(make(Scope::kRead), 200) << i;
  EXPECT_EQ(make(Scope::kRead), 429);
  EXPECT_EQ(make(Scope::kSample), 429);
  EXPECT_EQ(make(Scope::kAll), 200);
  EXPECT_EQ(make(Scope::kAll), 200);
  EXPECT_EQ(make(Scope::kAll), 429);
}

// As the SDK says it, however long: it is cut between two characters.
TEST(CreateSession, ALongVersionIsCutAtACharacter) {
  House house;
  const std::string version = std::string(63, '1') + "\xC3\xA9";
  const Response made = house.post("create_session", "{\"sdk_version\":\"" + version + "\"}");
  ASSERT_EQ(made.status, 200) << made.body;
  EXPECT_EQ(house.store().find_session(House::text(made, "session_id"))->sdk_version,
            std::string(63, '1'));
}

}  // namespace
}  // namespace strata::server
