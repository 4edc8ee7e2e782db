// SPDX-License-Identifier: Apache-2.0
#include "server/tinker_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "server/state/store_lists.h"
#include "tests/server/server_house.h"
#include "tests/server/state/test_postgres.h"

namespace strata::server {
namespace {

using strata::testing::TestPostgres;
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

// In less time than two statements after each other may wait for their answers.
TEST(TinkerServer, StopsWhileItsDatabaseHangs) {
  TestPostgres* postgres = TestPostgres::shared();
  if (postgres == nullptr) GTEST_SKIP() << "postgresql-15 is not installed";
  postgres->reset();
  const auto first = open_postgres_reader(postgres->url());
  const auto second = open_postgres_reader(postgres->url());
  ServerHouse house("{{ messages }}", postgres->url());
  Client client = house.client();
  postgres->freeze(true);
  ASSERT_TRUE(client.send(
      fmt::format("GET /api/v1/training_runs HTTP/1.1\r\nHost: 127.0.0.1\r\nX-API-Key: {}\r\n\r\n",
                  ServerHouse::key("alice"))));
  EXPECT_EQ(client.peek(0.2), "");
  std::atomic<bool> has_stopped = false;
  std::atomic<int> num_waits = 0;
  std::thread waits([&] {
    for (Sql* sql : {first.get(), second.get()}) {
      EXPECT_THROW(sql->run("SELECT 1", {}), Error);
      if (has_stopped) return;
      ++num_waits;
    }
  });
  house.server().stop();
  has_stopped = true;
  waits.join();
  postgres->freeze(false);
  EXPECT_LT(num_waits, 2);
}

}  // namespace
}  // namespace strata::server
