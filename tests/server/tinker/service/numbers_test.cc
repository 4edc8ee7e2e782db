// SPDX-License-Identifier: Apache-2.0
// A number of a model that comes again is answered as it was, whatever has become of it since.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/server/tinker/service/house.h"

namespace strata::server {
namespace {

Response step(House& house, const std::string& model, int seq, const char* rate = "0.1") {
  return house.post("optim_step", R"({"model_id":")" + model + R"(","seq_id":)" +
                                      std::to_string(seq) + R"(,"adam_params":{"learning_rate":)" +
                                      rate + "}}");
}

TEST(Numbers, ComeAgainAndAreAnsweredAsTheyWere) {
  House house;
  const std::string model = house.model(house.session());
  const Response first = step(house, model, 1);
  const std::string request = House::text(first, "request_id");
  const size_t submitted = house.submitted.size();
  const auto expect_known = [&](const char* when) {
    EXPECT_EQ(step(house, model, 1).body, first.body) << when;
    EXPECT_EQ(step(house, model, 1, "0.2").status, 409) << when;
    EXPECT_EQ(house.submitted.size(), submitted) << when;
  };
  expect_known("while it waits");
  house.settle(request, api::StepResult{});
  expect_known("when it is done");
  house.admission = api::Admission::kFull;
  EXPECT_EQ(step(house, model, 2).status, 429);
  expect_known("when the queue is full");
  house.service().begin_shutdown();
  EXPECT_EQ(step(house, model, 2).status, 503);
  expect_known("when the server stops");
}

TEST(Numbers, OfWhatWasNotTakenAreNew) {
  House house;
  const std::string model = house.model(house.session());
  house.admission = api::Admission::kFull;
  EXPECT_EQ(step(house, model, 1).status, 429);
  house.admission = api::Admission::kAccepted;
  EXPECT_EQ(step(house, model, 1, "0.2").status, 200);
}

// What the scheduler has run never runs again; without a memory of its answer it is told so. Until
// it is answered it is known.
TEST(Numbers, ThatAreForgottenAreNotRunTwice) {
  ServiceOptions options;
  options.remembered_bytes = SharedLimit(1);
  House house(options);
  const std::string model = house.model(house.session());
  const Response first = step(house, model, 1);
  EXPECT_EQ(first.status, 200);
  house.admission = api::Admission::kGivenUp;
  EXPECT_EQ(step(house, model, 1).body, first.body);
  EXPECT_EQ(step(house, model, 1, "0.2").status, 409);
  house.settle(House::text(first, "request_id"), api::StepResult{});
  EXPECT_EQ(step(house, model, 1).status, 400);
}

// Also with its answer made elsewhere, whose future waits for that.
TEST(Numbers, AreKnownUntilTheirAnswersAreMade) {
  ServiceOptions options;
  options.remembered_bytes = SharedLimit(1);
  House house(options);
  const std::string model = house.model(house.session());
  const auto save = [&] {
    return house.post("save_weights", R"({"model_id":")" + model + R"(","seq_id":1,"path":"a"})");
  };
  house.holds_jobs = true;
  const Response first = save();
  house.settle(House::text(first, "request_id"), api::Saved{});
  EXPECT_EQ(save().body, first.body);
  house.run_aside();
  house.admission = api::Admission::kGivenUp;
  EXPECT_EQ(save().status, 400);
}

// The making of a model comes again as long as there is the model.
TEST(Numbers, OfAModelItselfStay) {
  ServiceOptions options;
  options.remembered_bytes = SharedLimit(1);
  House house(options);
  const std::string session = house.session();
  const auto create = [&](int rank) {
    return house.post("create_model", R"({"session_id":")" + session +
                                          R"(","model_seq_id":0,"base_model":"tiny",)" +
                                          R"("lora_config":{"rank":)" + std::to_string(rank) +
                                          "}}");
  };
  const Response made = create(8);
  const auto expect_known = [&](const char* when) {
    EXPECT_EQ(create(8).body, made.body) << when;
    EXPECT_EQ(create(4).status, 400) << when;
    EXPECT_EQ(house.submitted.size(), 1u) << when;
  };
  expect_known("while it waits");
  house.settle(House::text(made, "request_id"), api::Done{});
  expect_known("when it is made");
  house.service().begin_shutdown();
  expect_known("when the server stops");
}

}  // namespace
}  // namespace strata::server
