// SPDX-License-Identifier: Apache-2.0
#include "server/tinker_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/server/server_house.h"

namespace strata::server {
namespace {

using ::testing::HasSubstr;

// Ends as an Error after as many steps as a template may take.
const std::string kLongTemplate =
    "{% for a in range(100000) %}{% for b in range(100000) %}{% set c = a * b %}{% endfor %}"
    "{% endfor %}";

// Of as many tenants as there are threads for chats.
TEST(TinkerServer, ChatsThatTakeLongDelayNoPass) {
  ServerHouse house(kLongTemplate);
  const std::string chat = R"({"model":"tiny","messages":[{"role":"user","content":")" +
                           std::string(100'000, 'x') + R"("}]})";
  Client first = house.client(), second = house.client(), passes = house.client();
  ASSERT_TRUE(first.send(ServerHouse::request("/v1/chat/completions", "alice", chat)));
  ASSERT_TRUE(second.send(ServerHouse::request("/v1/chat/completions", "bob", chat)));
  ASSERT_EQ(first.peek(0.1) + second.peek(0.1), "");  // both have begun
  const std::string pass = R"({"model_id":"none:train:0","seq_id":1,"forward_backward_input":)"
                           R"({"loss_fn":"cross_entropy","data":[]},"more":")" +
                           std::string(100'000, 'x') + R"("})";
  ASSERT_TRUE(passes.send(ServerHouse::request("/api/v1/forward_backward", "carl", pass)));
  EXPECT_EQ(status(passes.read(60)), "404");
  EXPECT_EQ(first.peek(0) + second.peek(0), "");
  EXPECT_THAT(first.read(120), HasSubstr("steps"));
  EXPECT_THAT(second.read(120), HasSubstr("steps"));
}

}  // namespace
}  // namespace strata::server
