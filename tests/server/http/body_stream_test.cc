// SPDX-License-Identifier: Apache-2.0
// Responses that are sent as they are made, to clients of all kinds.
#include "server/http/body_stream.h"

#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "server/http/server.h"
#include "tests/base/accounts.h"
#include "tests/base/temp_dir.h"
#include "tests/server/http/client.h"
#include "tests/server/http/tls_client.h"

namespace strata::server {
namespace {

using strata::testing::accounts_with;

constexpr size_t kRoom = 256 << 10;

TEST(BodyStream, KeepsWhatIsPushedInOrderAndWithinItsBound) {
  Charge charge = accounts_with(Use::kResponse, 3 << 20).open("t");
  BodyStream body;
  EXPECT_TRUE(body.offer_bytes("a"));
  ASSERT_TRUE(charge.hold(Use::kResponse, body.bytes_to_hold()));
  body.count_at(charge);
  EXPECT_TRUE(body.offer_bytes("bc"));
  EXPECT_EQ(body.pop_bytes(2), "ab");
  body.finish();
  EXPECT_FALSE(body.offer_bytes("late"));
  EXPECT_FALSE(body.finished());
  EXPECT_EQ(body.pop_bytes(100), "c");
  EXPECT_TRUE(body.finished());
}

TEST(BodyStream, WhatWaitsCountsUntilItIsSent) {
  const Accounts accounts = accounts_with(Use::kResponse, 3 << 20);
  const SharedLimit& limit = accounts.of(Use::kResponse);
  Charge charge = accounts.open("t");
  BodyStream body;
  ASSERT_TRUE(charge.hold(Use::kResponse, body.bytes_to_hold()));
  body.count_at(charge);
  const int64_t least = limit.used("t");
  EXPECT_TRUE(body.offer_bytes(std::string(kRoom, 'x')));
  EXPECT_GE(limit.used("t"), static_cast<int64_t>(kRoom));
  EXPECT_EQ(body.pop_bytes(kRoom).size(), kRoom);
  EXPECT_GE(limit.used("t"), static_cast<int64_t>(kRoom));
  body.release_sent_bytes();
  EXPECT_EQ(limit.used("t"), least);
  // Also where a little always waits.
  EXPECT_TRUE(body.offer_bytes(std::string(kRoom, 'x')));
  EXPECT_EQ(body.pop_bytes(kRoom).size(), kRoom);
  EXPECT_TRUE(body.offer_bytes(std::string(5 << 10, 'x')));
  body.release_sent_bytes();
  EXPECT_EQ(limit.used("t"), 5 << 10);
  EXPECT_EQ(body.pop_bytes(kRoom).size(), size_t{5} << 10);
  body.release_sent_bytes();
  EXPECT_TRUE(body.offer_bytes(std::string(BodyStream::kMostWaiting, 'x')));
  EXPECT_FALSE(body.offer_bytes("x"));  // beyond the bound
  EXPECT_TRUE(body.closed());
}

TEST(BodyStream, EndsWhereItsTenantHasNoRoom) {
  Charge charge = accounts_with(Use::kResponse, 100'000).open("t");
  BodyStream body;
  ASSERT_TRUE(charge.hold(Use::kResponse, body.bytes_to_hold()));
  body.count_at(charge);
  EXPECT_TRUE(body.offer_bytes(std::string(50'000, 'x')));
  EXPECT_FALSE(body.offer_bytes(std::string(60'000, 'x')));
  EXPECT_TRUE(body.closed());
  int closings = 0;
  body.on_close([&] { ++closings; });
  body.close();
  body.close();
  EXPECT_EQ(closings, 1);
}

TEST(BodyStream, AWholeOneIsNotLost) {
  BodyStream body;
  bool is_lost = false;
  body.on_close([&] { is_lost = true; });
  body.offer_bytes("all");
  body.finish();
  body.pop_bytes(10);
  body.close();
  EXPECT_FALSE(is_lost);
}

// A server whose one endpoint streams what the test pushes.
struct BodyStreamServer : ::testing::Test {
  BodyStreamServer() {
    options.header_timeout = 0.5;
    options.body_timeout = 0.5;
  }
  void serve() {
    Router router;
    const auto handler = [this](const Request&, const Respond& respond) {
      auto body = std::make_shared<BodyStream>();
      body->on_close([this] { lost.set_value(); });
      Response response;
      response.content_type = "text/event-stream";
      response.stream = body;
      respond(std::move(response));
      opened.set_value(body);
    };
    for (const char* method : {"POST", "HEAD"})
      router.add({method, "/stream", BodyKind::kNone, handler, /*needs_key=*/false});
    router.add({"GET", "/plain", BodyKind::kNone,
                at_once([](const Request&) { return json_response(200, "plain"); }),
                /*needs_key=*/false});
    router.add({"GET", "/long", BodyKind::kNone,
                at_once([](const Request&) { return json_response(200, std::string(5000, 'x')); }),
                /*needs_key=*/false});
    server = std::make_unique<HttpServer>(options, std::move(router),
                                          [](std::string_view) { return std::optional<Caller>(); });
    server->start();
  }
  [[nodiscard]] static std::string head(const std::string& line,
                                        const std::string& version = "1.1") {
    return line + " HTTP/" + version + "\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n";
  }
  std::shared_ptr<BodyStream> stream() { return opened.get_future().get(); }
  // On the I/O thread: what push() said.
  bool push(const std::shared_ptr<BodyStream>& body, std::string bytes) {
    std::promise<bool> pushed;
    server->post([&] { pushed.set_value(body->offer_bytes(bytes)); });
    return pushed.get_future().get();
  }
  void finish(const std::shared_ptr<BodyStream>& body) {
    server->post([body] { body->finish(); });
  }
  bool is_lost(double seconds) {
    return lost.get_future().wait_for(std::chrono::duration<double>(seconds)) ==
           std::future_status::ready;
  }

  HttpOptions options;
  std::promise<std::shared_ptr<BodyStream>> opened;
  std::promise<void> lost;
  std::unique_ptr<HttpServer> server;
};

// Bytes until `end` has come, or some seconds are over.
std::string read_until(Client& client, const std::string& end) {
  std::string all;
  const double until = now_seconds() + 5;
  while (all.find(end) == std::string::npos && now_seconds() < until) all = client.peek(0.05);
  return all;
}

TEST_F(BodyStreamServer, SendsChunksAsTheyCome) {
  serve();
  Client client(server->port());
  client.send(head("POST /stream"));
  const auto body = stream();
  ASSERT_TRUE(push(body, "data: 1\n\n"));
  EXPECT_NE(read_until(client, "\r\n9\r\ndata: 1\n\n\r\n").find("Transfer-Encoding: chunked\r\n"),
            std::string::npos);
  ASSERT_TRUE(push(body, "data: 2\n\n"));
  const std::string two = read_until(client, "data: 2");
  EXPECT_EQ(two.find("Content-Length"), std::string::npos);
  EXPECT_EQ(two.find("0\r\n\r\n"), std::string::npos);
  finish(body);
  read_until(client, "\r\n0\r\n\r\n");
  client.forget();
  // The connection has a further request, also one that came before the end.
  client.send("GET /plain HTTP/1.1\r\nHost: localhost\r\n\r\n");
  EXPECT_EQ(strata::server::body(client.read()), "plain");
}

TEST_F(BodyStreamServer, ARequestThatCameEarlyIsAnsweredNext) {
  serve();
  Client client(server->port());
  client.send(head("POST /stream"));
  const auto body = stream();
  client.send("GET /plain HTTP/1.1\r\nHost: localhost\r\n\r\n");
  ASSERT_TRUE(push(body, "first"));
  read_until(client, "first");
  finish(body);
  EXPECT_NE(read_until(client, "plain").find("0\r\n\r\nHTTP/1.1 200"), std::string::npos);
}

TEST_F(BodyStreamServer, OldClientsReadUntilTheEnd) {
  serve();
  Client client(server->port());
  client.send(head("POST /stream", "1.0"));
  const auto body = stream();
  ASSERT_TRUE(push(body, "one "));
  ASSERT_TRUE(push(body, "two"));
  finish(body);
  const std::string all = read_until(client, "two");
  EXPECT_TRUE(client.closes(2));
  EXPECT_EQ(strata::server::body(all), "one two");
  EXPECT_EQ(all.find("chunked"), std::string::npos);
  EXPECT_NE(all.find("Connection: close"), std::string::npos);
}

TEST_F(BodyStreamServer, HeadHasTheHeadAlone) {
  serve();
  Client client(server->port());
  client.send(
      "HEAD /stream HTTP/1.1\r\nHost: localhost\r\n\r\nGET /plain HTTP/1.1\r\nHost: "
      "localhost\r\n\r\n");
  const auto body = stream();
  EXPECT_TRUE(is_lost(2));  // nobody reads it
  const std::string all = read_until(client, "plain");
  EXPECT_NE(all.find("chunked\r\n"), std::string::npos);
  EXPECT_NE(all.find("\r\n\r\nHTTP/1.1 200"), std::string::npos);
}

// What it sent early is more than is read meanwhile.
TEST_F(BodyStreamServer, AHangUpBehindEarlyBytesIsSeen) {
  options.body_timeout = 30;
  serve();
  {
    Client client(server->port());
    client.send(head("POST /stream"));
    ASSERT_TRUE(push(stream(), "some"));
    std::string early;
    while (early.size() < 20'000) early += "GET /plain HTTP/1.1\r\nHost: localhost\r\n\r\n";
    client.send(early);
    read_until(client, "some");
  }
  EXPECT_TRUE(is_lost(10));
}

// Nothing is written meanwhile.
TEST_F(BodyStreamServer, AHangUpIsSeenAtOnce) {
  options.body_timeout = 30;
  serve();
  std::shared_ptr<BodyStream> body;
  {
    Client client(server->port());
    client.send(head("POST /stream"));
    body = stream();
    ASSERT_TRUE(push(body, "some"));
    read_until(client, "some");
  }
  EXPECT_TRUE(is_lost(1));
  EXPECT_FALSE(push(body, "more"));
}

// One that stays and reads nothing has what fits, then no more: by the bound of what waits, or by
// the deadline of a write.
TEST_F(BodyStreamServer, ASlowReaderIsDropped) {
  serve();
  Client client(server->port());
  client.send(head("POST /stream"));
  const auto body = stream();
  const double begin = now_seconds();
  while (push(body, std::string(kRoom, 'x'))) {
    ASSERT_LT(now_seconds() - begin, 20);
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_TRUE(is_lost(5));
}

TEST_F(BodyStreamServer, AWriteHasADeadline) {
  serve();
  Client client(server->port());
  client.send(head("POST /stream"));
  const auto body = stream();
  // As much as the sockets take, and a little that waits: its bound is not met.
  while (options.accounts.of(Use::kResponse).used("") < static_cast<int64_t>(kRoom))
    ASSERT_TRUE(push(body, std::string(kRoom / 8, 'x')));
  EXPECT_TRUE(is_lost(5));
  EXPECT_EQ(options.accounts.of(Use::kResponse).used(""), 0);
}

TEST_F(BodyStreamServer, ATenantWithoutRoomIsTold) {
  options.accounts.of(Use::kResponse) = SharedLimit(1000);
  options.put_in_form = [](std::string_view path, Response& refusal) {
    refusal.body = "form of " + std::string(path) + ": " + refusal.body;
  };
  serve();
  Client client(server->port());
  client.send(head("POST /stream"));
  const auto body = stream();
  const std::string answer = client.read();
  EXPECT_EQ(status(answer), "429");
  EXPECT_NE(answer.find("form of /stream: "), std::string::npos);
  EXPECT_NE(answer.find("--max-response-bytes 1000"), std::string::npos);
  client.forget();
  client.send("GET /long HTTP/1.1\r\nHost: localhost\r\n\r\n");
  EXPECT_NE(client.read().find("form of /long: "), std::string::npos);
  EXPECT_TRUE(is_lost(2));
}

// Also what is refused before anybody looks for the route.
TEST_F(BodyStreamServer, RefusalsHaveTheFormOfTheirPath) {
  options.put_in_form = [](std::string_view path, Response& refusal) {
    refusal.body = "form of " + std::string(path) + ": " + refusal.body;
  };
  serve();
  for (const char* headers : {"Host: other.site", "Host: localhost\r\nOrigin: http://other.site"}) {
    Client client(server->port());
    client.send("GET /long?a=b HTTP/1.1\r\n" + std::string(headers) + "\r\n\r\n");
    EXPECT_NE(client.read().find("form of /long: "), std::string::npos) << headers;
  }
}

TEST_F(BodyStreamServer, ThroughTls) {
  strata::testing::TempDir dir;
  options.tls = make_files(dir.path(), "one");
  serve();
  std::shared_ptr<BodyStream> body;
  {
    TlsClient client(server->port());
    ASSERT_TRUE(client.is_open());
    client.send(head("POST /stream"));
    body = stream();
    const std::string large(kRoom, 'x');
    ASSERT_TRUE(push(body, large));
    std::string all;
    while (all.size() < kRoom) {
      const std::string more = client.receive();
      ASSERT_FALSE(more.empty());
      all += more;
    }
    EXPECT_NE(all.find("Transfer-Encoding: chunked"), std::string::npos);
  }
  EXPECT_TRUE(is_lost(1));
  EXPECT_FALSE(push(body, "more"));
}

// The server ends while streams are open.
TEST_F(BodyStreamServer, StopsInTheMidstOfAStream) {
  serve();
  Client client(server->port());
  client.send(head("POST /stream"));
  const auto body = stream();
  ASSERT_TRUE(push(body, "some"));
  EXPECT_NE(read_until(client, "some").find("some"), std::string::npos);
  server->stop(0.1);
  server.reset();
  EXPECT_TRUE(is_lost(0));
  EXPECT_TRUE(client.closes(2));
}

}  // namespace
}  // namespace strata::server
