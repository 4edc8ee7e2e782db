// SPDX-License-Identifier: Apache-2.0
// Samples that a listener hears of, in place of a future.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/clock.h"
#include "server/tinker/service/futures.h"
#include "tests/server/tinker/service/house.h"

namespace strata::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

struct Heard {
  std::vector<std::string> events;
  Listener listener() {
    return [this](const api::Event& event) {
      if (std::holds_alternative<api::Accepted>(event.what)) events.emplace_back("accepted");
      if (const auto* told = std::get_if<api::RowTokens>(&event.what))
        events.push_back("token " + std::to_string(told->tokens.at(0)));
      if (!event.is_last()) return;
      const auto* failure = std::get_if<api::Failure>(&std::get<api::Outcome>(event.what));
      events.push_back(failure == nullptr ? "done" : failure->message);
    };
  }
};

Service::Sampling start(House& house, Heard& heard, int64_t max_tokens = 3) {
  Request request;
  request.tenant = "alice";
  request.key_id = "key";
  api::Sample sample;
  sample.prompt = {1, 2};
  sample.max_tokens = max_tokens;
  sample.streams_tokens = true;
  return house.service().submit_sample(request,
                                       house.service().make_sampler_by_name("alice", "tiny"),
                                       std::move(sample), heard.listener());
}

api::Event token(const api::RequestId& request, int64_t first, int32_t id) {
  return {request, api::RowTokens{.first = first, .tokens = {id}, .logprobs = {-1.0f}}};
}

TEST(Listener, HearsWhatHappensInOrderAndNothingElseIsKept) {
  House house;
  Heard heard, other;
  const Service::Sampling sampling = start(house, heard);
  ASSERT_FALSE(sampling.refusal.has_value());
  const Service::Sampling second = start(house, other);
  EXPECT_EQ(house.service().futures().num_pending(), 2u);
  api::SampleOutput output;
  output.sequences = {{.tokens = {7, 8}}};
  house.service().post({token(sampling.request, 0, 7), token(second.request, 0, 9)});
  house.service().post({token(sampling.request, 1, 8),
                        api::Event(sampling.request, api::Outcome(output)),
                        token(sampling.request, 2, 5)});
  EXPECT_THAT(heard.events, ElementsAre("accepted", "token 7", "token 8", "done"));
  EXPECT_THAT(other.events, ElementsAre("accepted", "token 9"));
  EXPECT_EQ(house.service().futures().num_pending(), 1u);
  EXPECT_EQ(house.service().futures().result_bytes(), 0);
  // What was sampled counts as that key's.
  const auto rows = house.usage().rows("alice");
  EXPECT_TRUE(std::any_of(rows.begin(), rows.end(),
                          [](const UsageRow& row) { return row.key_id == "key"; }));
}

TEST(Listener, IsNotToldOfWhatWasRefused) {
  House house;
  house.admission = api::Admission::kFull;
  Heard heard;
  const Service::Sampling sampling = start(house, heard);
  ASSERT_TRUE(sampling.refusal.has_value());
  EXPECT_EQ(sampling.refusal->status, 429);
  EXPECT_THAT(heard.events, ElementsAre());
  EXPECT_THROW(house.service().make_sampler_by_name("alice", "none"), Error);
}

TEST(Listener, HearsAFailureAndTheServersEnd) {
  House house;
  Heard failed, ended;
  const Service::Sampling first = start(house, failed);
  start(house, ended);
  house.service().cancel(first.request, "hung up");
  EXPECT_THAT(house.cancelled, ElementsAre(first.request.text));
  house.settle(first.request.text, api::Failure{api::FaultCategory::kUser, "hung up"});
  house.service().fail_pending();
  EXPECT_THAT(failed.events, ElementsAre("accepted", "hung up"));
  EXPECT_THAT(ended.events, ElementsAre("accepted", HasSubstr("shut down")));
}

// Who hangs up has what it was told, and that counts.
TEST(Listener, WhatWasToldCountsWhereTheRestIsCancelled) {
  House house;
  Heard heard, silent;
  const Service::Sampling sampling = start(house, heard);
  const Service::Sampling other = start(house, silent);
  house.service().post({token(sampling.request, 0, 7), token(sampling.request, 1, 8)});
  for (const Service::Sampling& one : {sampling, other}) {
    house.service().cancel(one.request, "hung up");
    house.settle(one.request.text, api::Failure{api::FaultCategory::kUser, "hung up"});
  }
  EXPECT_EQ(house.usage().total(UsageKind::kSampledTokens), 2);
}

// Its other requests and the server go on.
TEST(Listener, OneThatThrowsIsAlone) {
  House house;
  Heard heard;
  const Service::Sampling good = start(house, heard);
  Request request;
  request.tenant = "alice";
  api::Sample sample;
  sample.prompt = {1};
  bool throws = false;
  const auto bad =
      house.service().submit_sample(request, house.service().make_sampler_by_name("alice", "tiny"),
                                    std::move(sample), [&](const api::Event&) {
                                      if (throws) throw std::runtime_error("bad");
                                    });
  throws = true;
  house.service().post({token(bad.request, 0, 1), token(good.request, 0, 2)});
  house.settle(bad.request.text, api::SampleOutput{});
  EXPECT_THAT(heard.events, ElementsAre("accepted", "token 2"));
  EXPECT_EQ(house.service().futures().num_pending(), 1u);
}

}  // namespace
}  // namespace strata::server
