// SPDX-License-Identifier: Apache-2.0
// Which models OpenAI's clients may name.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/server/openai/openai_house.h"

namespace strata::server {
namespace {

namespace json = boost::json;
using ::testing::HasSubstr;

TEST(OpenAiEndpoint, ModelsAreNamesAndPaths) {
  OpenAiHouse house;
  const json::value list = house.call("GET", "/v1/models")->json();
  EXPECT_EQ(list.at("data").at(0).at("id"), "tiny");
  EXPECT_EQ(list.at("data").at(1).at("id"), "org/name");
  EXPECT_EQ(list.at("data").at(0).at("max_model_len"), 600);
  EXPECT_EQ(house.call("GET", "/v1/models/tiny")->response.status, 200);
  for (const char* path : {"/v1/models/none", "/v1/models/tinker://a:train:0/sampler_weights/x"}) {
    const auto missing = house.call("GET", path);
    EXPECT_EQ(missing->response.status, 404) << path;
    EXPECT_EQ(missing->error("code"), "model_not_found");
  }
  const auto missing =
      house.call("POST", "/v1/chat/completions",
                 R"({"model":"gpt-4o","messages":[{"role":"user","content":"x"}]})");
  EXPECT_EQ(missing->response.status, 404);
  EXPECT_EQ(missing->error("code"), "model_not_found");
  EXPECT_EQ(missing->error("param"), "model");
  EXPECT_THAT(missing->error("message"), HasSubstr("`gpt-4o`"));
}

// A database that is away says nothing of the model, and what it said is for the log alone.
TEST(OpenAiEndpoint, ADatabaseThatIsAwayIsNoUnknownModel) {
  OpenAiHouse house;
  house.house.faults().away = true;
  const std::string model = "tinker://run:train:0/sampler_weights/x";
  for (const auto& answer :
       {house.call("GET", "/v1/models/" + model),
        house.call("POST", "/v1/completions", R"({"prompt":"a","model":")" + model + R"("})")}) {
    EXPECT_EQ(answer->response.status, 503);
    EXPECT_THAT(answer->error("message"), HasSubstr("cannot write its state"));
    EXPECT_THAT(answer->response.bytes(), ::testing::Not(HasSubstr("injected")));
  }
}

}  // namespace
}  // namespace strata::server
