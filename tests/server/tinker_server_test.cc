// SPDX-License-Identifier: Apache-2.0
#include "server/tinker_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "base/clock.h"
#include "server/store/checkpoints/registry.h"
#include "server/store/state/store_lists.h"
#include "tests/base/temp_dir.h"
#include "tests/server/server_house.h"
#include "tests/server/store/state/test_postgres.h"

namespace strata::server {
namespace {

using strata::testing::read_bytes;
using strata::testing::TempDir;
using strata::testing::TestPostgres;
using strata::testing::write_bytes;
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

void save_one(const std::string& path) {
  const DataDir data(path);
  StateStore store(open_sqlite(data.database()), 1000);
  CheckpointRegistry registry(data, store, {});
  const std::string folder = registry.begin_save();
  write_bytes(folder + "/adapter_config.json", "{}");
  CheckpointSave save;
  save.path = {"s:train:0", CheckpointKind::kWeights, "a"};
  save.tenant = "alice";
  registry.finish_save(folder, save, 1000);
}

// What it says is what happened, also where nobody waits for its lines.
TEST(TinkerServer, TheAuditLogTellsOfLoginsReadsAndReloads) {
  const TempDir dir;
  const std::string audit = dir.file("audit"), keys = dir.file("keys"), data = dir.file("data");
  const std::string two =
      ServerHouse::key("alice") + " alice\n" + ServerHouse::key("bob") + " bob\n";
  write_bytes(keys, two);
  ASSERT_EQ(::chmod(keys.c_str(), 0600), 0);
  save_one(data);
  ServerHouse house("{{ messages }}", "", [&](ServeOptions& options) {
    options.keys_text.clear();
    options.keys = keys;
    options.audit = audit;
    options.data = data;
  });
  const auto wait_for = [&](const std::string& text) {
    const double end = now_seconds() + 10;
    while (read_bytes(audit).find(text) == std::string::npos && now_seconds() < end) ::usleep(1000);
    EXPECT_THAT(read_bytes(audit), HasSubstr(text));
  };
  const auto get = [&](const std::string& path, const std::string& tenant) {
    Client client = house.client();
    client.send(fmt::format("GET {} HTTP/1.1\r\nHost: 127.0.0.1\r\nX-API-Key: {}\r\n\r\n", path,
                            ServerHouse::key(tenant)));
    return status(client.read(30));
  };
  EXPECT_EQ(get("/api/v1/usage", "nobody"), "401");
  wait_for(R"("action":"login refused","object":"1 since the start; the last: GET /api/v1/usage")");
  const std::string archive = "/api/v1/training_runs/s:train:0/checkpoints/weights/a/archive";
  EXPECT_EQ(get(archive, "alice"), "200");
  wait_for(R"("object":")" + archive + '"');
  house.server().reload();
  wait_for(R"("action":"reload","object":"keys: read again")");
  write_bytes(keys, two.substr(0, two.size() - 8));  // a copy that is under way
  std::atomic<bool> is_done = false;
  house.server().reload([&] { is_done = true; });
  wait_for(R"("action":"reload","object":"keys: the old ones stay")");
  while (!is_done) ::usleep(1000);
  EXPECT_EQ(get("/api/v1/usage", "bob"), "200");
  const std::string all = read_bytes(audit);
  EXPECT_EQ(all.find("keys: read again"), all.rfind("keys: read again"));
}

}  // namespace
}  // namespace strata::server
