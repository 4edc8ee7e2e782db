// SPDX-License-Identifier: Apache-2.0
// Endpoints that other servers have, and what a sample's tokens leave in the metrics.
#include "server/openai/endpoints_of_others.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/clock.h"
#include "tests/server/openai/openai_house.h"

namespace strata::server {
namespace {

using ::testing::HasSubstr;

TEST(EndpointsOfOthers, AreRefusedByName) {
  OpenAiHouse house;
  const auto refused = house.call("POST", "/v1/responses", R"({"model":"tiny","input":"hello"})");
  EXPECT_EQ(refused->response.status, 404);
  EXPECT_EQ(refused->error("code"), "unsupported_endpoint");
  EXPECT_THAT(refused->error("message"), HasSubstr("use POST /v1/chat/completions"));
  for (const char* path : {"/v1/messages", "/v1/embeddings"}) {
    EXPECT_THAT(house.call("POST", path, "{}")->error("message"), HasSubstr("/v1/chat/completions"))
        << path;
  }
  EXPECT_TRUE(house.house.submitted.empty());
}

TEST(EndpointsOfOthers, HealthIsTheServersReadiness) {
  OpenAiHouse house;
  EXPECT_EQ(house.call("GET", "/health")->response.status, 503);  // it has not ticked yet
  house.house.service().tick(now_seconds());
  EXPECT_EQ(house.call("GET", "/health")->response.status, 200);
  house.house.service().begin_shutdown();
  EXPECT_EQ(house.call("GET", "/health")->response.status, 503);
}

// Of each token, whether its client is told it or not.
TEST(EndpointsOfOthers, MetricsHaveTheLatenciesThatVllmHas) {
  OpenAiHouse house;
  house.chat(R"("messages":[{"role":"user","content":"hello"}],"stream":true)");
  house.complete(R"("prompt":"x","n":2)");
  for (const int64_t place : {0, 1})
    house.tell(0, {.row = 0, .first = place, .tokens = {5}, .logprobs = {-0.5f}});
  for (const int64_t row : {0, 1, 1, 1}) {
    house.house.service().post(
        {api::Event(house.command(1).request, api::Sampled{.row = row, .count = 1})});
  }
  const std::string text =
      house.house.watch().metrics().render_prometheus({}, {}, house.house.usage());
  EXPECT_THAT(text, HasSubstr("\nstrata_time_to_first_token_seconds_count 2\n"));
  EXPECT_THAT(text, HasSubstr("\nstrata_inter_token_latency_seconds_count 3\n"));
}

}  // namespace
}  // namespace strata::server
