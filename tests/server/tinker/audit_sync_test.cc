// SPDX-License-Identifier: Apache-2.0
// Changes between two lines of the audit log, over real sockets, and a log that cannot be written.
#include "server/tinker/audit_sync.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

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

// Of a pipe that nobody empties, its end to read from.
int make_pipe(const std::string& path) {
  EXPECT_EQ(::mkfifo(path.c_str(), 0600), 0);
  return ::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
}

struct AuditSyncTest : ::testing::Test {
  explicit AuditSyncTest(bool is_pipe = false) : reader(is_pipe ? make_pipe(path) : -1) {
    Router router;
    router.add(
        {"POST", "/api/v1/change/{}", BodyKind::kJson, at_once([this](const Request& request) {
           if (reader < 0) seen = std::ranges::count(read_bytes(path), '\n');
           ++num_changes;
           if (request.parts[0] == "fill") fill();
           request.note("the thing");
           if (request.parts[0] == "bad") throw Error(ErrorCode::kInvalidArgument, "bad");
           return json_response(200, "{}");
         })});
    router.add({"GET", "/api/v1/open/{}", BodyKind::kNone, at_once([](const Request& request) {
                  return request.parts[0] == "x" ? json_response(200, "{}")
                                                 : error_response(404, "no such file");
                }),
                /*needs_key=*/false});
    router.wrap([this](const Route& route) {
      return route.needs_key ? sync.audited(route.handler)
                             : sync.audited_if_answered(route.handler);
    });
    server = std::make_unique<HttpServer>(
        HttpOptions{}, std::move(router), [](std::string_view key) -> std::optional<Caller> {
          return key == "tml-good" ? std::optional<Caller>(Caller{"alice"}) : std::nullopt;
        });
    server->call_every(0.02, [this] { sync.end_overdue_waits(now_seconds()); });
    server->start();
  }
  ~AuditSyncTest() override {
    log.forget();
    server.reset();
    if (reader >= 0) ::close(reader);
  }
  // The pipe takes no more.
  void fill() const {
    const int writer = ::open(path.c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC);
    const std::string some(4096, '#');
    while (::write(writer, some.data(), some.size()) > 0 || ::write(writer, "#", 1) > 0) {
    }
    ::close(writer);
  }
  // What stands in it, once it has come to `wanted`.
  [[nodiscard]] std::string drain(const std::string& wanted) const {
    std::string all;
    for (const double end = now_seconds() + 5; now_seconds() < end;) {
      char some[4096];
      const ssize_t count = ::read(reader, some, sizeof some);
      if (count > 0) all.append(some, static_cast<size_t>(count));
      if (count <= 0 && all.find(wanted) != std::string::npos) break;
      if (count <= 0) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return all;
  }
  std::string change(const std::string& name) {
    Client client(server->port());
    client.send("POST /api/v1/change/" + name +
                " HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                "X-API-Key: tml-good\r\nContent-Length: 2\r\n\r\n{}");
    return client.read();
  }

  std::string look(const std::string& name) {
    Client client(server->port());
    client.send("GET /api/v1/open/" + name + " HTTP/1.1\r\nHost: localhost\r\n\r\n");
    return client.read();
  }

  TempDir dir;
  std::string path = dir.file("audit");
  const int reader;  // of a pipe; else -1
  std::unique_ptr<HttpServer> server;
  AuditLog log{path};
  AuditSync sync{log, [this](std::function<void()> task) { server->post(std::move(task)); },
                 /*most_wait=*/0.3};
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

// Anybody may ask there, so a refusal leaves no line: a disk is not a stranger's to fill.
TEST_F(AuditSyncTest, WhatNeedsNoKeyHasOneLineIfItIsAnswered) {
  for (int i = 0; i < 50; ++i) EXPECT_EQ(status(look("y")), "404");
  EXPECT_EQ(read_bytes(path), "");
  EXPECT_EQ(status(look("x")), "200");
  const auto lines = lines_of(path);
  ASSERT_EQ(lines.size(), 1U);
  EXPECT_EQ(lines[0].at("object"), "/api/v1/open/x");
  EXPECT_EQ(lines[0].at("status"), 200);
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
  const std::string refused_open = look("x");
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  ::signal(SIGXFSZ, handler);
  EXPECT_EQ(status(refused), "503");
  EXPECT_EQ(status(refused_open), "503");
  EXPECT_THAT(refused, HasSubstr("--audit-sync"));
  EXPECT_EQ(num_changes, 1);
  EXPECT_EQ(status(change("z")), "200") << "once there is room again";
  EXPECT_EQ(num_changes, 2);
}

// A disk that hangs.
struct AuditSyncOfAPipe : AuditSyncTest {
  AuditSyncOfAPipe() : AuditSyncTest(/*is_pipe=*/true) {}
};

TEST_F(AuditSyncOfAPipe, ADiskThatHangsIsWaitedForAWhile) {
  EXPECT_EQ(status(change("x")), "200");
  fill();
  const double begin = now_seconds();
  const std::string refused = change("y");
  EXPECT_EQ(status(refused), "503");
  EXPECT_THAT(refused, HasSubstr("does not answer"));
  EXPECT_GE(now_seconds() - begin, 0.3);
  EXPECT_EQ(num_changes, 1);
  // The line comes later, and nothing is done then; it is followed by one that says so.
  EXPECT_THAT(drain("\"status\":503,\"begun\":3"), HasSubstr("\"object\":\"/api/v1/change/y\""));
  EXPECT_EQ(status(change("z")), "200");
  EXPECT_EQ(num_changes, 2);
}

// The change is done: its answer goes.
TEST_F(AuditSyncOfAPipe, AnAnswerDoesNotWaitLongerEither) {
  EXPECT_EQ(status(change("fill")), "200");
  EXPECT_EQ(num_changes, 1);
  EXPECT_THAT(drain("\"status\":200,\"begun\":1"), HasSubstr("the thing"));
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
