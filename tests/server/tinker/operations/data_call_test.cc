// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/server/tinker/service/house.h"

namespace strata::server {
namespace {

using ::testing::HasSubstr;

// It would be refused every time: told as a fault of its data, and its number is used up.
TEST(ForwardBackward, APassThatNoQueueHasRoomForFailsAndIsNotSentAgain) {
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

// What is told is what holds: a longer one is its sender's fault, and nothing of the pass runs.
TEST(ForwardBackward, RefusesToTrainALongerDatum) {
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

}  // namespace
}  // namespace strata::server
