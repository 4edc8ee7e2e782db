// SPDX-License-Identifier: Apache-2.0
// Sampling sessions are made freely and kept for long: what they take is their tenant's share, and
// that a row of one made way shows in no answer.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/server/tinker/service/house.h"

namespace strata::server {
namespace {

using ::testing::HasSubstr;

Response make(House& house, const std::string& session, int number) {
  return house.post("create_sampling_session",
                    R"({"session_id":")" + session + R"(","sampling_session_seq_id":)" +
                        std::to_string(number) + R"(,"base_model":"tiny"})");
}

Response sample(House& house, const std::string& sampler, int seq_id, int token = 1) {
  return house.post("asample", R"({"sampling_session_id":")" + sampler + R"(","seq_id":)" +
                                   std::to_string(seq_id) +
                                   R"(,"prompt":{"chunks":[{"type":"encoded_text","tokens":[)" +
                                   std::to_string(token) +
                                   R"(]}]},"num_samples":1,"sampling_params":{"max_tokens":1}})");
}

Response save_unsaved(House& house, const std::string& model, int seq_id, int number) {
  return house.post("save_weights_for_sampler",
                    R"({"model_id":")" + model + R"(","seq_id":)" + std::to_string(seq_id) +
                        R"(,"sampling_session_seq_id":)" + std::to_string(number) + "}");
}

TEST(Samplers, ManyTakeAShareAndAnOldOneSamplesAsBefore) {
  ServiceOptions options;
  options.sampler_bytes = SharedLimit(32 << 10);
  House house(options);
  const std::string session = house.session();
  ASSERT_EQ(make(house, session, 0).status, 200);
  const std::string first = session + ":sample:0";
  const Response sampled = sample(house, first, 1);
  ASSERT_EQ(sampled.status, 200) << sampled.body;
  const api::Command command = house.submitted.back();
  for (int i = 1; i < 1000; ++i) ASSERT_EQ(make(house, session, i).status, 200);
  EXPECT_LE(options.sampler_bytes.used(), 32 << 10);
  EXPECT_GT(options.sampler_bytes.used(), 16 << 10);
  ASSERT_FALSE(house.service().samplers().contains(first));
  EXPECT_EQ(make(house, session, 0).status, 200);
  for (int i = 1; i < 1000; ++i) make(house, session, i);
  ASSERT_FALSE(house.service().samplers().contains(first));
  const size_t submitted = house.submitted.size();
  EXPECT_EQ(sample(house, first, 1).body, sampled.body);
  EXPECT_EQ(sample(house, first, 1, 2).status, 409);
  EXPECT_EQ(house.submitted.size(), submitted);
  EXPECT_EQ(sample(house, first, 2).status, 200);
  EXPECT_TRUE(house.submitted.back().base == command.base);
  EXPECT_EQ(std::get<api::Sample>(house.submitted.back().op).snapshot.text,
            std::get<api::Sample>(command.op).snapshot.text);
}

// Who publishes weights and takes them back has their space again, whoever samples from them.
TEST(Samplers, AnothersCheckpointIsReadAsLongAsItStands) {
  House house;
  const std::string model = house.model(house.session());
  const Response saved = house.post("save_weights_for_sampler",
                                    R"({"model_id":")" + model + R"(","seq_id":1,"path":"p"})");
  house.settle(House::text(saved, "request_id"), api::Saved{api::SavedAs::kState, "d"});
  const std::string path = House::text(house.poll(House::text(saved, "request_id")), "path");
  const TinkerPath at = parse_tinker_path(path);
  const std::string id =
      house.store().find_checkpoint(at.run_id, at.kind, at.name, wall_seconds())->id;
  house.store().set_public(id, true);
  const auto make_of = [&](const std::string& tenant, int number) {
    return house.post("create_sampling_session",
                      R"({"session_id":")" + house.session(tenant) +
                          R"(","sampling_session_seq_id":)" + std::to_string(number) +
                          R"(,"model_path":")" + path + R"("})",
                      tenant);
  };
  const Response of_bob = make_of("bob", 0);
  ASSERT_EQ(of_bob.status, 200) << of_bob.body;
  const std::string sampler = House::text(of_bob, "sampling_session_id");
  ASSERT_TRUE(house.service().samplers().contains(sampler));
  EXPECT_TRUE(house.store().delete_checkpoint(id, wall_seconds()));
  house.service().tick(now_seconds() + 10);  // a sweep
  house.service().tick(now_seconds() + 11);
  EXPECT_FALSE(house.service().samplers().contains(sampler));
  const Response gone =
      house.post("asample",
                 R"({"sampling_session_id":")" + sampler +
                     R"(","seq_id":1,"prompt":{"chunks":[{"type":"encoded_text","tokens":[1]}]},)"
                     R"("num_samples":1,"sampling_params":{"max_tokens":1}})",
                 "bob");
  EXPECT_EQ(gone.status, 404);
  EXPECT_THAT(gone.body, HasSubstr("its checkpoint is gone"));
  EXPECT_EQ(house.store().stored_bytes("alice"), 0);
}

TEST(Samplers, TheirNumberIsTheStores) {
  ServiceOptions options;
  options.sampler_bytes = SharedLimit(4096);
  options.max_samplers = 50;
  House house(options);
  const std::string session = house.session();
  SamplerRow before;  // a restart
  before.id = session + ":sample:1000";
  before.session_id = session;
  before.sampling_seq = 1000;
  before.tenant = "alice";
  before.base_model = "tiny";
  house.store().ensure_sampler(before);
  house.restart();
  house.faults().statement = "SELECT COUNT";  // they may be many, and it holds up everybody
  for (int i = 0; i < 49; ++i) ASSERT_EQ(make(house, session, i).status, 200);
  const Response refused = make(house, session, 49);
  EXPECT_EQ(refused.status, 400);
  EXPECT_THAT(refused.body, HasSubstr("has 50 sampling sessions (--max-samplers-per-session)"));
  EXPECT_EQ(make(house, session, 0).status, 200);
  EXPECT_EQ(make(house, session, 1000).status, 200);
}

// The database has rows of them, which no limit of the disk counts.
TEST(Samplers, ATenantsRowsHaveALimit) {
  ServiceOptions options;
  options.max_tenant_samplers = 4;
  House house(options, {.keep_samplers = 2});
  const std::string ended = house.session(), session = house.session();
  for (int i = 0; i < 3; ++i) ASSERT_EQ(make(house, ended, i).status, 200);
  ASSERT_EQ(make(house, session, 0).status, 200);
  const std::string model = house.model(session);
  for (const Response& refused : {make(house, session, 1), save_unsaved(house, model, 1, 7)}) {
    EXPECT_EQ(refused.status, 429);
    EXPECT_THAT(refused.body, HasSubstr("--max-samplers-per-tenant"));
  }
  EXPECT_EQ(make(house, session, 0).status, 200);
  house.post("sessions/" + ended + "/finish", "{}");
  house.registry().sweep(wall_seconds(), 0);
  EXPECT_EQ(make(house, session, 1).status, 200);
  EXPECT_EQ(save_unsaved(house, model, 1, 7).status, 200);
}

// Those that are not saved cannot make way: a training loop is told, and its number is not used up.
TEST(Samplers, UnsavedOnesBeyondTheShareAreRefused) {
  ServiceOptions options;
  options.sampler_bytes = SharedLimit(8 << 10);
  House house(options);
  const std::string session = house.session();
  const std::string model = house.model(session);
  ASSERT_EQ(make(house, session, 1000).status, 200);
  int number = 0;
  Response saved = save_unsaved(house, model, 1, 0);
  const Response first = saved;
  while (saved.status == 200) {
    house.settle(House::text(saved, "request_id"), api::Saved{});
    ASSERT_LT(number, 100);
    ++number;
    saved = save_unsaved(house, model, number + 1, number);
  }
  EXPECT_EQ(saved.status, 429);
  EXPECT_THAT(saved.body, HasSubstr("sampling sessions on unsaved weights"));
  EXPECT_GT(number, 5);
  EXPECT_TRUE(house.consumed.empty());
  EXPECT_EQ(save_unsaved(house, model, 1, 0).body, first.body);  // as it was answered
  // A saved one samples without a row, and the first unsaved one is there.
  EXPECT_EQ(sample(house, session + ":sample:1000", 1).status, 200);
  EXPECT_EQ(sample(house, session + ":sample:0", 1).status, 200);
  // One that replaces another has its bytes.
  const Response again = save_unsaved(house, model, number + 1, 0);
  EXPECT_EQ(again.status, 200);
  house.settle(House::text(again, "request_id"), api::Saved{});
  EXPECT_LE(options.sampler_bytes.used(), 8 << 10);
  EXPECT_EQ(house.post("sessions/" + session + "/finish", "{}").status, 200);
  EXPECT_EQ(options.sampler_bytes.used(), 0);
  EXPECT_EQ(house.released.size(), static_cast<size_t>(number));
}

// Its name is not the base model's.
TEST(Samplers, OneThatWasCrowdedOutIsNotMadeOfTheBaseModel) {
  ServiceOptions options;
  options.max_ephemerals = 1;
  House house(options);
  const std::string session = house.session();
  const std::string model = house.model(session);
  for (int i = 0; i < 2; ++i)
    house.settle(House::text(save_unsaved(house, model, i + 1, i), "request_id"), api::Saved{});
  const Response made = make(house, session, 0);
  EXPECT_EQ(made.status, 404);
  EXPECT_THAT(made.body, HasSubstr("--max-ephemeral"));
}

// Many samplers of one session that ends do not hold up the others.
TEST(Samplers, TheEndOfASessionDropsSomeAtATick) {
  ServiceOptions options;
  options.remembered_bytes = SharedLimit(8 << 20);
  House house(options);
  const std::string session = house.session();
  const int64_t count = 3 * Service::kDropsAtOnce + 1;
  for (int64_t i = 0; i < count; ++i)
    ASSERT_EQ(make(house, session, static_cast<int>(i)).status, 200);
  ASSERT_EQ(sample(house, session + ":sample:7", 1).status, 200);
  const int64_t all = options.sampler_bytes.used();
  EXPECT_EQ(house.post("sessions/" + session + "/finish", "{}").status, 200);
  const int64_t left = options.sampler_bytes.used();
  EXPECT_GT(left, all / 2);
  EXPECT_LT(left, all);
  const Response ended = sample(house, session + ":sample:3000", 1);
  EXPECT_EQ(ended.status, 400);
  EXPECT_THAT(ended.body, HasSubstr("has ended"));
  for (int i = 0; i < 3; ++i) {
    EXPECT_GT(options.sampler_bytes.used(), 0) << i;
    house.service().tick(i);
  }
  EXPECT_EQ(options.sampler_bytes.used(), 0);
  EXPECT_EQ(options.remembered_bytes.used(), 0);
}

// Also what is remembered of those that made way before goes with the session.
TEST(Samplers, NumbersOfOnesThatMadeWayEndWithTheSession) {
  ServiceOptions options;
  options.sampler_bytes = SharedLimit(4096);
  House house(options);
  const std::string session = house.session();
  for (int i = 0; i < 20; ++i) {
    ASSERT_EQ(make(house, session, i).status, 200);
    const Response taken = sample(house, session + ":sample:" + std::to_string(i), 1);
    ASSERT_EQ(taken.status, 200);
    EXPECT_EQ(options.remembered_bytes.used(), i * 1024) << "what waits is counted where it waits";
    house.settle(House::text(taken, "request_id"), api::SampleOutput{});
  }
  EXPECT_GT(options.remembered_bytes.used(), 20 * 1000);
  EXPECT_EQ(house.post("sessions/" + session + "/finish", "{}").status, 200);
  EXPECT_EQ(options.remembered_bytes.used(), 0);
  EXPECT_EQ(options.sampler_bytes.used(), 0);
}

}  // namespace
}  // namespace strata::server
