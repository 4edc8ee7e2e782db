// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/server/tinker/service/house.h"

namespace strata::server {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

// What the store refuses, for a NUL or because it is away, was not submitted: no slot is taken.
TEST(CreateModel, AModelIsWrittenDownBeforeItIsSubmitted) {
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

// Its row is the copy's, and stays so.
TEST(CreateModel, ANumberThatACopyHasIsRefusedByName) {
  House house;
  const std::string session = house.session();
  const auto create = [&] {
    return house.post("create_model", R"({"session_id":")" + session +
                                          R"(","model_seq_id":3,"base_model":"tiny",)" +
                                          R"("lora_config":{"rank":8}})");
  };
  RunRow run;
  run.id = session + ":train:3";
  run.tenant = "alice";
  run.state = RunState::kCopy;
  CheckpointRow row;
  row.id = "c";
  row.run_id = run.id;
  row.tenant = "alice";
  ASSERT_TRUE(house.store().add_copy(run, row, {}));
  const Response refused = create();
  EXPECT_EQ(refused.status, 400);
  EXPECT_THAT(refused.body, HasSubstr("create_model: model_seq_id: 3 of session " + session));
  EXPECT_THAT(house.submitted, IsEmpty());
  EXPECT_EQ(house.store().find_run(run.id)->state, RunState::kCopy);
}

}  // namespace
}  // namespace strata::server
