// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/server/tinker/service/house.h"

namespace strata::server {
namespace {

using ::testing::HasSubstr;

TEST(SaveWeights, AFaultOfTheServersFilesNamesNoPath) {
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

// It may name its address and its user.
TEST(SaveWeights, WhatTheDatabaseSaysIsTheOperators) {
  House house;
  const std::string model = house.model(house.session());
  const Response saved =
      house.post("save_weights", R"({"model_id":")" + model + R"(","seq_id":1})");
  house.faults().statement = "INSERT INTO checkpoints";
  house.settle(House::text(saved, "request_id"), api::Saved{api::SavedAs::kState, "d"});
  const Response told = house.poll(House::text(saved, "request_id"));
  EXPECT_THAT(told.body, HasSubstr("cannot write its state now"));
  EXPECT_THAT(told.body, HasSubstr("\"server\""));
  EXPECT_THAT(told.body, ::testing::Not(HasSubstr("injected fault")));
}

// Space on the disk is taken when a save is accepted, not when it has been written.
TEST(SaveWeights, SavesInLineReserveTheirBytes) {
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
  EXPECT_THAT(refused.body, HasSubstr("checkpoints take 0 bytes, this one 3000 besides 9000 of "
                                      "others in line, and --max-disk is 10000"));
  EXPECT_THAT(refused.body, HasSubstr("\"server\""));
  house.settle(requests[0], api::Failure{api::FaultCategory::kServer, "no"});
  save(5);
  EXPECT_EQ(house.submitted.size(), 5u);
}

// Thousands may be in line, and end at once: the I/O thread makes and removes nothing for them.
TEST(SaveWeights, ASaveInLineHasNoFolder) {
  House house;
  const std::string model = house.model(house.session());
  const auto save = [&](const char* call, int seq) {
    return House::text(
        house.post(call, R"({"model_id":")" + model + R"(","seq_id":)" + std::to_string(seq) + "}"),
        "request_id");
  };
  const std::string failed = save("save_weights", 1), lost = save("save_weights_for_sampler", 2);
  const std::string kept = save("save_weights", 3);
  EXPECT_EQ(house.num_temporary(), 0);
  house.holds_jobs = true;
  const api::Failure failure{api::FaultCategory::kUser, "the session has ended"};
  house.settle(failed, failure);
  house.settle(lost, failure);
  EXPECT_EQ(house.num_aside(), 0u);
  house.settle(kept, api::Saved{api::SavedAs::kState, "d"});
  EXPECT_EQ(house.num_aside(), 1u);
  EXPECT_EQ(house.num_temporary(), 0);
  house.run_aside();
  EXPECT_THAT(house.poll(kept).body, HasSubstr("tinker://"));
  EXPECT_EQ(house.num_temporary(), 0);  // it is a checkpoint's now
  EXPECT_THAT(house.written, ::testing::ElementsAre(kept));
}

// The engine's copy goes, and the folder that was made for it.
TEST(SaveWeights, ASaveThatCannotBeWrittenLeavesNothing) {
  House house;
  const std::string model = house.model(house.session());
  const auto save = [&](int seq) {
    const std::string number = std::to_string(seq);
    const Response saved = house.post(
        "save_weights", R"({"model_id":")" + model + R"(","seq_id":)" + number + R"(,"path":"s"})");
    return House::text(saved, "request_id");
  };
  const std::string first = save(1), second = save(2);
  const auto* state = std::get_if<api::SaveState>(&house.submitted.back().op);
  ASSERT_NE(state, nullptr);
  std::filesystem::create_directory(state->dir);  // somebody else's
  house.settle(second, api::Saved{api::SavedAs::kState, state->dir});
  EXPECT_THAT(house.poll(second).body, HasSubstr("its log says why"));
  EXPECT_THAT(house.dropped, ::testing::ElementsAre(second));
  std::filesystem::remove(state->dir);
  house.faults().statement = "INSERT INTO checkpoints";
  house.settle(first, api::Saved{api::SavedAs::kState, "d"});
  EXPECT_THAT(house.poll(first).body, HasSubstr("error"));
  EXPECT_EQ(house.num_temporary(), 0);
}

}  // namespace
}  // namespace strata::server
