// SPDX-License-Identifier: Apache-2.0
// The service against a fake dispatch: time limits, faults of the store, and what they leave.
#include "server/service/service.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/clock.h"
#include "base/files.h"
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

// Everybody else is served meanwhile.
TEST(Service, ThousandsThatFallSilentAtOnceEndSomeAtATick) {
  House house(session_timeout(300));
  constexpr size_t kSessions = 500;
  for (size_t i = 0; i < kSessions; ++i) house.session("tenant" + std::to_string(i));
  double now = now_seconds();
  for (int second = 0; second < 290; ++second) house.service().tick(now += 1);
  EXPECT_THAT(house.ended, IsEmpty());
  size_t most = 0;
  for (int i = 0; i < 200 && house.ended.size() < kSessions; ++i) {
    const size_t before = house.ended.size();
    house.service().tick(now += i < 20 ? 1 : 0.1);
    most = std::max(most, house.ended.size() - before);
  }
  EXPECT_EQ(house.ended.size(), kSessions);
  EXPECT_LE(most, 50u);
}

// A process that was frozen, or an I/O thread that hung, could not read a sign of life.
// Passes and samples alone: signs of life and polls are read however late the thread is.
TEST(Service, AThreadThatIsBehindTakesNoNewWork) {
  House house;
  const Handler none = [](Request&&, const Respond&) {};
  Request request;
  request.tenant = "alice";
  const Route pass{.method = "POST", .pattern = "x", .handler = none, .size = BodySize::kPass};
  const Route beat{.method = "POST", .pattern = "y", .handler = none, .effect = Effect::kUpkeep};
  const auto admit = [&](const Route& route) {
    request.route = &route;
    const auto refused = house.service().admit(request);
    return refused ? refused->status : 200;
  };
  double now = now_seconds();
  house.service().tick(now);
  house.service().tick(now += 60);
  EXPECT_EQ(admit(pass), 200) << "a standstill that is over";
  house.service().tick(now += 2);
  house.service().tick(now += 2);
  EXPECT_EQ(admit(pass), 503);
  EXPECT_EQ(admit(beat), 200);
  for (int i = 0; i < 3; ++i) house.service().tick(now += 0.1);
  EXPECT_EQ(admit(pass), 200) << "it has caught up";
}

TEST(Service, AStandstillIsNoSilence) {
  const double before = now_seconds();
  House house(session_timeout(300));
  const std::string session = house.session();
  const double begin = now_seconds();
  const double thawed = begin + 3600;
  house.service().tick(thawed);  // the first one: the freeze began before it
  EXPECT_THAT(house.ended, IsEmpty());
  // It began when the service was made, so between these two; rounding keeps the order.
  EXPECT_GE(house.excused, thawed - begin);
  EXPECT_LE(house.excused, thawed - before);
  for (int second = 1; second <= 290; ++second) house.service().tick(thawed + second);
  EXPECT_THAT(house.ended, IsEmpty());
  for (int second = 291; second <= 310; ++second) house.service().tick(thawed + second);
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
  EXPECT_THAT(house.watch().metrics().text({}, {}, house.usage()),
              HasSubstr("strata_faults_total{step=\"end_session\"}"));
  house.faults().away = false;
  for (int second = 0; second < 12; ++second) house.service().tick(++now);
  EXPECT_THAT(house.ended, ElementsAre(session));
  EXPECT_EQ(house.service().unready(now), "");
}

// A database that was lost is looked for between the sweeps, and what expired goes when it is back.
TEST(Service, AStoreThatWasLostIsLookedForAndSweptWhenItIsBack) {
  House house(session_timeout(20));
  house.holds_jobs = true;
  const std::string session = house.session();
  double now = now_seconds();
  house.service().tick(now);
  house.run_aside();
  house.faults().away = house.faults().lost = true;
  EXPECT_THAT(house.service().unready(now), HasSubstr("away"));
  for (int second = 0; second < 30; ++second) {
    house.service().tick(++now);
    house.run_aside();
  }
  EXPECT_THAT(house.ended, IsEmpty());
  house.faults().away = false;
  house.service().tick(now += 0.1);
  house.run_aside();
  EXPECT_FALSE(house.faults().lost);
  EXPECT_THAT(house.ended, IsEmpty());
  house.service().tick(now += 0.1);
  EXPECT_THAT(house.ended, ElementsAre(session));
}

// Where the disk is too full for a line of usage, what may go has to go all the more.
TEST(Service, AFullDiskIsSweptAllTheSame) {
  House house(session_timeout(20));
  const std::string session = house.session();
  CheckpointSave save;
  save.path = {house.model(session), CheckpointKind::kWeights, "gone"};
  save.tenant = "alice";
  const std::string dir = house.registry().begin();
  write_file_atomic(dir + "/adapter_config.json", "{}");
  const CheckpointRow row = house.registry().finish(dir, save, wall_seconds());
  ASSERT_TRUE(house.store().delete_checkpoint(row.id, wall_seconds()));
  house.faults().statement = "INSERT INTO usage_by_key";
  house.usage().add("alice", "key", UsageKind::kRequests, 1, now_seconds());
  double now = now_seconds();
  for (int second = 0; second < 12; ++second) house.service().tick(++now);
  EXPECT_FALSE(file_exists(house.registry().folder(row)));
  EXPECT_THAT(house.service().unready(now), HasSubstr("away"));
}

// The store fails while failures are noted: each result of the batch reaches its future.
TEST(Service, OneFaultLosesNoOtherResult) {
  House house;
  const std::string session = house.session();
  std::vector<std::string> requests;
  std::vector<api::Result> results;
  for (int i = 0; i < 3; ++i) {
    const Response made =
        house.post("create_model", R"({"session_id":")" + session + R"(","model_seq_id":)" +
                                       std::to_string(i) +
                                       R"(,"base_model":"tiny","lora_config":{"rank":8}})");
    requests.push_back(House::text(made, "request_id"));
    results.push_back({{requests.back()}, api::Failure{api::FaultCategory::kUser, "no slot"}});
  }
  results[2].outcome = api::Done{};
  house.faults().away = true;
  house.service().post({results.begin(), results.end()});
  house.faults().away = false;
  EXPECT_THAT(house.poll(requests[0]).body, HasSubstr("no slot"));
  EXPECT_THAT(house.poll(requests[1]).body, HasSubstr("no slot"));
  EXPECT_THAT(house.poll(requests[2]).body, HasSubstr("create_model"));
  EXPECT_EQ(house.service().models().size(), 1u);
}

// What the store refuses, for a NUL or because it is away, was not submitted: no slot is taken.
TEST(Service, AModelIsWrittenDownBeforeItIsSubmitted) {
  House house;
  const std::string session = house.session();
  const auto create = [&](const std::string& base) {
    return house.post("create_model", R"({"session_id":")" + session +
                                          R"(","model_seq_id":0,"base_model":")" + base +
                                          R"(","lora_config":{"rank":8}})");
  };
  EXPECT_EQ(create(R"(tiny:\u0000)").status, 400);
  house.faults().statement = "INSERT INTO runs";
  EXPECT_EQ(create("tiny").status, 503);
  EXPECT_THAT(house.submitted, IsEmpty());
  house.faults().statement = "";
  house.admission = api::Admission::kFull;
  EXPECT_EQ(create("tiny").status, 400);
  EXPECT_FALSE(house.store().find_run(session + ":train:0").has_value());
  house.admission = api::Admission::kAccepted;
  EXPECT_EQ(create("tiny").status, 200);
  EXPECT_EQ(house.submitted.size(), 1u);
  EXPECT_EQ(house.service().models().size(), 1u);
}

// It would be refused every time: told as a fault of its data, and its number is used up.
TEST(Service, APassThatNoQueueHasRoomForFailsAndIsNotSentAgain) {
  House house;
  const std::string model = house.model(house.session());
  house.admission = api::Admission::kTooLarge;
  const std::string pass = R"({"model_id":")" + model + R"(","seq_id":1,"forward_backward_input":{
      "loss_fn":"cross_entropy","data":[{"model_input":{"chunks":[{"tokens":[1]}]},
      "loss_fn_inputs":{"target_tokens":{"data":[1],"dtype":"int64"},
                        "weights":{"data":[1],"dtype":"float32"}}}]}})";
  const Response taken = house.post("forward_backward", pass);
  ASSERT_EQ(taken.status, 200) << taken.body;
  const Response told = house.poll(House::text(taken, "request_id"));
  EXPECT_THAT(told.body, HasSubstr("--max-queued-bytes"));
  EXPECT_THAT(told.body, HasSubstr("\"category\":\"user\""));
  EXPECT_EQ(House::text(house.post("forward_backward", pass), "request_id"),
            House::text(taken, "request_id"));
}

// Tables over 60 tokens take 480 bytes for each of `topk`.
Response sample_with_tables(House& house, int seq_id, int topk) {
  const std::string sampler =
      House::text(house.post("create_sampling_session",
                             R"({"session_id":")" + house.session() +
                                 R"(","sampling_session_seq_id":0,"base_model":"tiny"})"),
                  "sampling_session_id");
  std::string tokens = "1";
  for (int i = 1; i < 60; ++i) tokens += ",1";
  return house.post("asample", R"({"sampling_session_id":")" + sampler + R"(","seq_id":)" +
                                   std::to_string(seq_id) + R"(,"topk_prompt_logprobs":)" +
                                   std::to_string(topk) +
                                   R"(,"prompt":{"chunks":[{"type":"encoded_text","tokens":[)" +
                                   tokens + R"(]}]},"sampling_params":{"max_tokens":1}})");
}

// For what never fits, 429 would be answered for ever.
TEST(Service, AResultThatNeverFitsIsRefusedForGood) {
  ServiceOptions options;
  options.futures.results = SharedLimit(100'000);
  House house(options);
  EXPECT_EQ(sample_with_tables(house, 1, 90).status, 200);
  EXPECT_EQ(sample_with_tables(house, 2, 90).status, 200);
  EXPECT_EQ(sample_with_tables(house, 3, 90).status, 429);
  options.futures.results = SharedLimit(20'000);
  House small(options);
  const Response refused = sample_with_tables(small, 1, 90);
  EXPECT_EQ(refused.status, 400);
  EXPECT_THAT(refused.body, HasSubstr("--max-result-bytes"));
}

// create_session needs the store: 503 with Retry-After while that is away, and then it works.
TEST(Service, WhatNeedsTheStoreIsToldToComeAgain) {
  House house;
  house.faults().away = true;
  const Response refused = house.post("create_session", "{}");
  EXPECT_EQ(refused.status, 503);
  EXPECT_EQ(refused.headers.at(0).name, "retry-after");
  EXPECT_THAT(refused.body, ::testing::Not(HasSubstr("injected")));
  house.faults().away = false;
  EXPECT_NE(house.session(), "");
}

// Ending one session does not walk through the samplers of all.
TEST(Service, EndingASessionLooksAtItsOwnAlone) {
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

TEST(Service, SessionsAndSamplersHaveLimits) {
  ServiceOptions options;
  options.max_sessions = 2;
  options.max_samplers = 3;
  House house(options);
  const std::string session = house.session();
  house.session();
  const Response third = house.post("create_session", "{}");
  EXPECT_EQ(third.status, 400);
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
TEST(Service, AKeyWithoutRightsLeavesAPartOfTheSessions) {
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
  EXPECT_EQ(make(Scope::kAll), 400);
}

// After a restart samplers live in the store until they are used again.
TEST(Service, AReadOnlyKeyEndsNoSamplersOfBeforeARestart) {
  House house;
  const std::string session = house.session();
  SamplerRow sampler;
  sampler.id = session + ":sample:0";
  sampler.session_id = session;
  sampler.tenant = "alice";
  sampler.base_model = "tiny";
  house.store().add_sampler(sampler);
  const auto finish = [&](Scope scope) {
    return house.call("POST", "sessions/" + session + "/finish", "{}", "alice", {}, scope).status;
  };
  EXPECT_EQ(finish(Scope::kRead), 403);
  EXPECT_EQ(finish(Scope::kSample), 200);
}

TEST(Service, AFaultOfTheServersFilesNamesNoPath) {
  House house;
  const std::string model = house.model(house.session());
  const Response saved =
      house.post("save_weights", R"({"model_id":")" + model + R"(","seq_id":1,"path":"s"})");
  const std::string request = House::text(saved, "request_id");
  house.settle(request, api::Failure{api::FaultCategory::kServer,
                                     house.data().path() + "/x: create: Not a directory"});
  const Response told = house.poll(request);
  EXPECT_THAT(told.body, HasSubstr("its log says why"));
  EXPECT_THAT(told.body, ::testing::Not(HasSubstr(house.data().path())));
}

// Room on the disk is taken when a save is accepted, not when it has been written.
TEST(Service, SavesInLineReserveTheirBytes) {
  RegistryOptions disk;
  disk.max_disk = 10'000;
  House house({}, disk);
  const std::string model = house.model(house.session());
  std::vector<std::string> requests;
  const auto save = [&](int seq) {
    const std::string number = std::to_string(seq);
    return house.post("save_weights", R"({"model_id":")" + model + R"(","seq_id":)" + number +
                                          R"(,"path":"s)" + number + "\"}");
  };
  for (int seq = 1; seq <= 4; ++seq) {
    const Response saved = save(seq);
    EXPECT_EQ(saved.status, 200) << saved.body;
    requests.push_back(House::text(saved, "request_id"));
  }
  EXPECT_EQ(house.submitted.size(), 4u);  // the model and three saves of 3,000 bytes
  const Response refused = house.poll(requests[3]);
  EXPECT_THAT(refused.body, HasSubstr("--max-disk"));
  EXPECT_THAT(refused.body, HasSubstr("\"server\""));
  house.settle(requests[0], api::Failure{api::FaultCategory::kServer, "no"});
  save(5);
  EXPECT_EQ(house.submitted.size(), 5u);
}

// Of samplers on weights that are saved nowhere, the oldest make room.
TEST(Service, UnsavedSamplersMakeRoomForYoungerOnes) {
  ServiceOptions options;
  options.max_ephemerals = 2;
  House house(options);
  const std::string session = house.session();
  const std::string model = house.model(session);
  for (int i = 0; i < 3; ++i) {
    const Response saved =
        house.post("save_weights_for_sampler",
                   R"({"model_id":")" + model + R"(","seq_id":)" + std::to_string(i + 1) +
                       R"(,"sampling_session_seq_id":)" + std::to_string(i) + "}");
    house.settle(House::text(saved, "request_id"), api::Saved{});
  }
  EXPECT_THAT(house.released, ElementsAre(session + ":sample:0"));
  const Response gone = house.call("GET", "samplers/" + session + ":sample:0");
  EXPECT_EQ(gone.status, 404);
  EXPECT_THAT(gone.body, HasSubstr("--max-ephemeral"));
  EXPECT_EQ(house.call("GET", "samplers/" + session + ":sample:1").status, 200);
}

// A sample that is sent again gets the same answer, though only its number and id were kept.
TEST(Service, ARepeatedSampleIsAnsweredAlike) {
  House house;
  const std::string session = house.session();
  house.post(
      "create_sampling_session",
      R"({"session_id":")" + session + R"(","sampling_session_seq_id":0,"base_model":"tiny"})");
  const std::string body =
      R"({"sampling_session_id":")" + session +
      R"(:sample:0","seq_id":1,"num_samples":3,"prompt":{"chunks":[{"type":)"
      R"("encoded_text","tokens":[5,9]}]},"sampling_params":{"max_tokens":2}})";
  const Response first = house.post("asample", body);
  EXPECT_EQ(first.status, 200) << first.body;
  EXPECT_THAT(first.body, HasSubstr(":sample:0:1:2\""));
  EXPECT_EQ(house.post("asample", body).body, first.body);
  EXPECT_EQ(house.submitted.size(), 1u);
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

// What is told is what holds: a longer one is its sender's fault, and nothing of the pass runs.
TEST(Service, RefusesToTrainALongerDatum) {
  House house;
  const std::string model = house.model(house.session());
  const auto pass = [&](const char* endpoint, int seq_id, int tokens) {
    std::string ids = "1", ones = "1";
    for (int i = 1; i < tokens; ++i) {
      ids += ",1";
      ones += ",1";
    }
    const Response sent = house.post(
        endpoint, R"({"model_id":")" + model + R"(","seq_id":)" + std::to_string(seq_id) + ",\"" +
                      endpoint + R"(_input":{"loss_fn":"cross_entropy","data":[{"model_input":
        {"chunks":[{"type":"encoded_text","tokens":[)" +
                      ids + R"(]}]},"loss_fn_inputs":{"target_tokens":{"data":[)" + ids +
                      R"(],"dtype":"int64"},"weights":{"data":[)" + ones +
                      R"(],"dtype":"float32"}}}]}})");
    EXPECT_EQ(sent.status, 200) << sent.body;
    return house.poll(House::text(sent, "request_id"));
  };
  EXPECT_EQ(pass("forward_backward", 1, 48).status, 0) << "it waits for its turn";
  EXPECT_EQ(pass("forward", 2, 49).status, 0) << "scoring keeps less";
  const size_t submitted = house.submitted.size();
  const Response refused = pass("forward_backward", 3, 49);
  EXPECT_EQ(House::text(refused, "category"), "user");
  EXPECT_THAT(House::text(refused, "error"), HasSubstr("has 49 tokens"));
  EXPECT_THAT(House::text(refused, "error"), HasSubstr("max_trained_length"));
  EXPECT_EQ(house.submitted.size(), submitted);
}

// Clients that know nothing of it leave max_trained_length alone.
TEST(Service, TellsHowLongADatumMayBe) {
  House house;
  EXPECT_EQ(house.call("GET", "get_server_capabilities").body,
            R"({"supported_models":[{"model_name":"tiny","max_context_length":64,)"
            R"("max_trained_length":48,"trainable":true,"sampleable":true}]})");
}

}  // namespace
}  // namespace strata::server
