// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/server/tinker/service/house.h"

namespace strata::server {
namespace {

using ::testing::HasSubstr;

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
TEST(Asample, AResultThatNeverFitsIsRefusedForGood) {
  ServiceOptions options;
  options.futures.accounts.of(Use::kResult) = SharedLimit(100'000);
  House house(options);
  EXPECT_EQ(sample_with_tables(house, 1, 90).status, 200);
  EXPECT_EQ(sample_with_tables(house, 2, 90).status, 200);
  EXPECT_EQ(sample_with_tables(house, 3, 90).status, 429);
  ServiceOptions fewer;
  fewer.futures.accounts.of(Use::kResult) = SharedLimit(20'000);
  House small(fewer);
  const Response refused = sample_with_tables(small, 1, 90);
  EXPECT_EQ(refused.status, 400);
  EXPECT_THAT(refused.body, HasSubstr("--max-result-bytes"));
}

// A sample that is sent again gets the same answer, though only its number and id were kept.
TEST(Asample, ARepeatedSampleIsAnsweredAlike) {
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

}  // namespace
}  // namespace strata::server
