// SPDX-License-Identifier: Apache-2.0
// Changes between two lines of the audit log, over real sockets, and a log that cannot be written.
#include "server/audit_sync.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <boost/json.hpp>

#include "tests/base/temp_dir.h"
#include "tests/server/http/client.h"

namespace strata::server {
namespace {

using strata::testing::read_bytes;
using strata::testing::TempDir;
using ::testing::HasSubstr;

std::vector<boost::json::object> lines_of(const std::string& path) {
  std::vector<boost::json::object> out;
  const std::string text = read_bytes(path);
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = text.find('\n', begin);
    out.push_back(boost::json::parse(text.substr(begin, end - begin)).as_object());
    begin = end + 1;
  }
  return out;
}

struct AuditSyncTest : ::testing::Test {
  AuditSyncTest() {
    Router router;
    router.add(
        {"POST", "/api/v1/change/{}", BodyKind::kJson, at_once([this](const Request& request) {
           seen = std::ranges::count(read_bytes(path), '\n');
           ++num_changes;
           request.note("the thing");
           if (request.parts[0] == "bad") throw Error(ErrorCode::kInvalidArgument, "bad");
           return json_response(200, "{}");
         })});
    router.wrap([this](const Route& route) {
      return audited(route.handler, log,
                     [this](std::function<void()> task) { server->post(std::move(task)); });
    });
    server = std::make_unique<HttpServer>(
        HttpOptions{}, std::move(router), [](std::string_view key) -> std::optional<Caller> {
          return key == "tml-good" ? std::optional<Caller>(Caller{"alice"}) : std::nullopt;
        });
    server->start();
  }
  ~AuditSyncTest() override { log.forget(); }
  std::string change(const std::string& name) {
    Client client(server->port());
    client.send("POST /api/v1/change/" + name +
                " HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                "X-API-Key: tml-good\r\nContent-Length: 2\r\n\r\n{}");
    return client.read();
  }

  TempDir dir;
  std::string path = dir.file("audit");
  std::unique_ptr<HttpServer> server;
  AuditLog log{path};
  std::atomic<int64_t> seen = 0;
  std::atomic<int> num_changes = 0;
};

TEST_F(AuditSyncTest, ALineStandsBeforeTheChangeAndOneBeforeItsAnswer) {
  EXPECT_EQ(status(change("x")), "200");
  EXPECT_EQ(seen, 1) << "before anything is done";
  const auto lines = lines_of(path);
  ASSERT_EQ(lines.size(), 2U);
  EXPECT_EQ(lines[0].at("object"), "/api/v1/change/x");
  EXPECT_EQ(lines[0].at("status"), 0);
  EXPECT_FALSE(lines[0].contains("begun"));
  EXPECT_EQ(lines[1].at("tenant"), "alice");
  EXPECT_EQ(lines[1].at("action"), "POST /api/v1/change/{}");
  EXPECT_EQ(lines[1].at("object"), "the thing");
  EXPECT_EQ(lines[1].at("status"), 200);
  EXPECT_EQ(lines[1].at("begun"), lines[0].at("seq"));
}

TEST_F(AuditSyncTest, AFaultOfTheHandlerIsAnAnswerToo) {
  EXPECT_EQ(status(change("bad")), "400");
  const auto lines = lines_of(path);
  ASSERT_EQ(lines.size(), 2U);
  EXPECT_EQ(lines[1].at("status"), 400);
}

TEST_F(AuditSyncTest, WhatCannotBeWrittenIsNotDone) {
  EXPECT_EQ(status(change("x")), "200");
  rlimit before = {};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = ::signal(SIGXFSZ, SIG_IGN);
  const rlimit tight = {.rlim_cur = read_bytes(path).size() + 10, .rlim_max = before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &tight), 0);
  const std::string refused = change("y");
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  ::signal(SIGXFSZ, handler);
  EXPECT_EQ(status(refused), "503");
  EXPECT_THAT(refused, HasSubstr("--audit-sync"));
  EXPECT_EQ(num_changes, 1);
  EXPECT_EQ(status(change("z")), "200") << "once there is room again";
  EXPECT_EQ(num_changes, 2);
}

TEST_F(AuditSyncTest, ManyAtOnceAreAllAnswered) {
  std::vector<std::thread> clients;
  std::atomic<int> good = 0;
  for (int i = 0; i < 16; ++i) {
    clients.emplace_back([&] {
      for (int k = 0; k < 8; ++k) good += status(change("x")) == "200" ? 1 : 0;
    });
  }
  for (std::thread& one : clients) one.join();
  EXPECT_EQ(good, 128);
  EXPECT_EQ(lines_of(path).size(), 256U);
}

}  // namespace
}  // namespace strata::server
