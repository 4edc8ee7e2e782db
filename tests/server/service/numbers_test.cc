// SPDX-License-Identifier: Apache-2.0
// A number of a model that comes again is answered as it was, whatever has become of it since.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/server/service/house.h"

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

// What the scheduler has run never runs again; without a memory of its answer it is told so.
TEST(Numbers, ThatAreForgottenAreNotRunTwice) {
  ServiceOptions options;
  options.remembered_bytes = SharedLimit(1);
  House house(options);
  const std::string model = house.model(house.session());
  EXPECT_EQ(step(house, model, 1).status, 200);
  house.admission = api::Admission::kGivenUp;
  EXPECT_EQ(step(house, model, 1).status, 400);
}

}  // namespace
}  // namespace strata::server
