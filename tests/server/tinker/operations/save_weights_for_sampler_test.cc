// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "tests/server/tinker/service/house.h"

namespace strata::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Of samplers on weights that are saved nowhere, the oldest make space.
TEST(SaveWeightsForSampler, UnsavedSamplersMakeRoomForYoungerOnes) {
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

// Its weights are in memory alone: what is sent again must not take them away.
TEST(SaveWeightsForSampler, ASaveThatIsSentAgainKeepsItsSampler) {
  House house;
  const std::string model = house.model(house.session());
  const std::string body =
      R"({"model_id":")" + model + R"(","seq_id":1,"sampling_session_seq_id":0})";
  const Response first = house.post("save_weights_for_sampler", body);
  house.settle(House::text(first, "request_id"), api::Saved{});
  EXPECT_EQ(house.post("save_weights_for_sampler", body).body, first.body);
  house.admission = api::Admission::kFull;
  EXPECT_EQ(house
                .post("save_weights_for_sampler",
                      R"({"model_id":")" + model + R"(","seq_id":2,"sampling_session_seq_id":0})")
                .status,
            429);
  EXPECT_TRUE(house.released.empty());
}

TEST(SaveWeightsForSampler, AStoredSamplerIsNotReplaced) {
  House house;
  const std::string session = house.session(), model = house.model(session);
  const Response stored = house.post(
      "create_sampling_session",
      R"({"session_id":")" + session + R"(","sampling_session_seq_id":0,"base_model":"tiny"})");
  ASSERT_EQ(stored.status, 200);
  const Response saved =
      house.post("save_weights_for_sampler",
                 R"({"model_id":")" + model + R"(","seq_id":1,"sampling_session_seq_id":0})");
  house.settle(House::text(saved, "request_id"), api::Saved{});
  EXPECT_THAT(house.poll(House::text(saved, "request_id")).body, HasSubstr("is in use"));
  EXPECT_EQ(house.released.size(), 1u);
  const Response kept = house.call("GET", "samplers/" + session + ":sample:0");
  EXPECT_THAT(kept.body, HasSubstr(R"("base_model":"tiny")"));
  EXPECT_THAT(kept.body, ::testing::Not(HasSubstr("model_path\":\"")));
}

TEST(SaveWeightsForSampler, OneThatReplacesAnotherRemovesItsFolder) {
  House house;
  const std::string model = house.model(house.session());
  for (int i = 1; i <= 3; ++i) {
    const Response saved = house.post("save_weights_for_sampler",
                                      R"({"model_id":")" + model + R"(","seq_id":)" +
                                          std::to_string(i) + R"(,"sampling_session_seq_id":0})");
    EXPECT_EQ(house.num_temporary(), i > 1 ? 1 : 0);
    // As an engine that is short of memory makes it.
    const auto* save = std::get_if<api::SaveForSampler>(&house.submitted.back().op);
    ASSERT_NE(save, nullptr);
    std::filesystem::create_directory(save->dir);
    house.settle(House::text(saved, "request_id"), api::Saved{});
  }
  EXPECT_EQ(house.num_temporary(), 1);
}

}  // namespace
}  // namespace strata::server
