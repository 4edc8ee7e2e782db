// SPDX-License-Identifier: Apache-2.0
// HttpServerTest: an HttpServer over real sockets of the loopback device, with routes of all kinds.
#pragma once
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "server/http/server.h"
#include "tests/server/http/client.h"

namespace strata::server {

inline constexpr size_t kLong = 24 << 20;

struct HttpServerTest : ::testing::Test {
  HttpServerTest() {
    options.max_body = options.max_small_body = 1 << 20;
    options.header_timeout = 0.3;
    options.body_timeout = 0.3;
    options.keepalive = 5;
    serve();
  }

  [[nodiscard]] Router routes() {
    Router router;
    router.add({"GET", "/api/v1/healthz", BodyKind::kNone,
                at_once([](const Request&) { return json_response(200, "{\"status\":\"ok\"}"); }),
                false});
    router.add({"GET", "/api/v1/open", BodyKind::kNone,
                at_once([](const Request&) { return json_response(200, std::string(kLong, 'x')); }),
                false});
    router.add({"POST", "/api/v1/echo", BodyKind::kJson, at_once([](const Request& request) {
                  return json_response(200, request.tenant + ":" + request.body);
                })});
    router.add({.method = "POST",
                .pattern = "/api/v1/pass",
                .body = BodyKind::kJson,
                .handler = at_once([](const Request&) { return json_response(200, "{}"); }),
                .size = BodySize::kData});
    router.add({.method = "POST",
                .pattern = "/api/v1/beat",
                .body = BodyKind::kJson,
                .handler = at_once([](const Request&) { return json_response(200, "{}"); }),
                .size = BodySize::kTiny,
                .effect = Effect::kUpkeep});
    router.add({.method = "GET",
                .pattern = "/api/v1/read",
                .handler = at_once([](const Request&) { return json_response(200, "{}"); }),
                .scope = Scope::kRead});
    router.add({.method = "GET",
                .pattern = "/api/v1/sample",
                .handler = at_once([](const Request&) { return json_response(200, "{}"); }),
                .scope = Scope::kSample});
    router.add({"GET", "/api/v1/long", BodyKind::kNone, at_once([](const Request&) {
                  return json_response(200, std::string(kLong, 'x'));
                })});
    add_waiting(router);
    return router;
  }

  // Routes that answer later, or take their time.
  void add_waiting(Router& router) {
    router.add({"POST", "/api/v1/park", BodyKind::kJson,
                [this](const Request&, const Respond& respond) { park(respond); }});
    router.add({.method = "POST",
                .pattern = "/api/v1/poll",
                .body = BodyKind::kJson,
                .handler = [this](const Request&, const Respond& respond) { park(respond); },
                .effect = Effect::kUpkeep,
                .watches_peer = true});
    const Handler slow = at_once([this](const Request& request) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      order.push_back(request.tenant);
      return json_response(200, "{}");
    });
    router.add({"POST", "/api/v1/slow", BodyKind::kJson, slow});
    router.add(
        {.method = "GET", .pattern = "/api/v1/slow", .handler = slow, .effect = Effect::kReads});
    router.add({"GET", "/api/v1/parked", BodyKind::kNone, at_once([this](const Request&) {
                  return json_response(200, std::to_string(num_parked.load()));
                })});
  }

  void park(const Respond& respond) {
    parked.push_back(respond);
    ++num_parked;
  }
  void await_parked(size_t count) const {
    while (num_parked < count) std::this_thread::yield();
  }

  // With the options as they are; what ran before ends.
  void serve() {
    server = std::make_unique<HttpServer>(
        options, routes(),
        [](std::string_view key) {
          std::optional<Caller> caller;
          if (key == "tml-good") caller = Caller{"t1", false};
          if (key == "tml-other") caller = Caller{"t2", false};
          if (key == "tml-read") caller = Caller{.tenant = "t1", .scope = Scope::kRead};
          if (key == "tml-sample") caller = Caller{.tenant = "t1", .scope = Scope::kSample};
          if (key == "tml-old") caller = Caller{.tenant = "t1", .has_expired = true};
          return caller;
        },
        Observe{},
        [this](const Request& request) -> std::optional<Response> {
          if (!is_limited || request.tenant != "t1") return std::nullopt;
          return error_response(429, request.route == nullptr ? "nowhere" : request.route->pattern);
        });
    server->start();
  }

  [[nodiscard]] std::string head(const std::string& line, const std::string& more = {}) const {
    return line + " HTTP/1.1\r\nHost: 127.0.0.1:" + std::to_string(server->port()) +
           "\r\nX-API-Key: tml-good\r\nContent-Type: application/json\r\n" + more + "\r\n";
  }
  [[nodiscard]] static std::string length(size_t size) {
    return "Content-Length: " + std::to_string(size) + "\r\n";
  }
  std::string ask(const std::string& text) const {
    Client client(server->port());
    client.send(text);
    return client.read();
  }

  HttpOptions options;
  std::atomic<bool> is_limited = false;
  std::vector<Respond> parked;  // the server's thread's, until so many were awaited
  std::atomic<size_t> num_parked = 0;
  std::vector<std::string> order;  // of tenants whose slow requests were answered
  std::unique_ptr<HttpServer> server;
};

}  // namespace strata::server
