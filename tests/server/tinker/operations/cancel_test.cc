// SPDX-License-Identifier: Apache-2.0
// cancel_future, and what an operator may cancel.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/clock.h"
#include "tests/server/tinker/service/house.h"

namespace strata::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string sample(House& house, const std::string& session) {
  house.post(
      "create_sampling_session",
      R"({"session_id":")" + session + R"(","sampling_session_seq_id":0,"base_model":"tiny"})");
  return House::text(
      house.post("asample", R"({"sampling_session_id":")" + session +
                                R"(:sample:0","seq_id":1,"prompt":{"chunks":[{"type":)"
                                R"("encoded_text","tokens":[5]}]},"sampling_params":{"max_tokens":)"
                                R"(2}})"),
      "request_id");
}

Response cancel(House& house, const std::string& request, const std::string& tenant = "alice") {
  return house.post("cancel_future", R"({"request_id":")" + request + "\"}", tenant);
}

TEST(Cancel, EndsASampleOfOnesOwn) {
  House house;
  const std::string request = sample(house, house.session());
  EXPECT_EQ(cancel(house, request, "bob").status, 404);
  EXPECT_EQ(cancel(house, "made up").status, 404);
  EXPECT_EQ(cancel(house, request).status, 204);
  EXPECT_EQ(house.about(), request);  // for the audit log
  EXPECT_THAT(house.cancelled, ElementsAre(request));
  std::vector<api::Event> sampled;
  for (int i = 0; i < 3; ++i)
    sampled.emplace_back(api::RequestId{request}, api::Sampled{.count = 1});
  house.service().post(std::move(sampled));
  house.settle(request, api::Failure{api::FaultCategory::kUser, "was cancelled"});
  EXPECT_EQ(house.usage().total(UsageKind::kSampledTokens), 3) << "they were sampled all the same";
  EXPECT_EQ(cancel(house, request).status, 204);  // has ended: nothing is left to do
  EXPECT_THAT(house.cancelled, ElementsAre(request));
  EXPECT_THAT(house.poll(request).body, HasSubstr(R"("category":"user")"));
}

TEST(Cancel, WhatTrainsRuns) {
  House house;
  const std::string model = house.model(house.session());
  const std::string step = house.step(model);
  ASSERT_FALSE(step.empty());
  const Response refused = cancel(house, step);
  EXPECT_EQ(refused.status, 400);
  EXPECT_THAT(refused.body, HasSubstr("is no sample"));
  EXPECT_THAT(house.cancelled, ElementsAre());
}

TEST(Cancel, APollThatEndsCancelsNothing) {
  House house;
  const std::string request = sample(house, house.session());
  EXPECT_EQ(house.poll(request).status, 0);  // held
  house.service().tick(now_seconds() + 100);
  EXPECT_THAT(house.cancelled, ElementsAre());
}

TEST(Cancel, AnOperatorEndsAnybodys) {
  House house;
  const std::string request = sample(house, house.session());
  const std::string path = "requests/" + request + "/cancel";
  EXPECT_EQ(house.post(path, "{}").status, 403);
  EXPECT_EQ(house.call_as_admin(path).status, 204);
  EXPECT_EQ(house.call_as_admin("requests/none/cancel").status, 404);
  EXPECT_THAT(house.cancelled, ElementsAre(request));
}

}  // namespace
}  // namespace strata::server
