// SPDX-License-Identifier: Apache-2.0
// Clients behind trusted proxies: which address is theirs, and what holds for it.
#include "server/http/proxies.h"

#include <gtest/gtest.h>

#include <mutex>

#include "base/error.h"
#include "server/http/server.h"
#include "tests/server/http/client.h"

namespace strata::server {
namespace {

sockaddr_in ipv4(const char* text) {
  sockaddr_in out = {};
  out.sin_family = AF_INET;
  EXPECT_EQ(::inet_pton(AF_INET, text, &out.sin_addr), 1);
  return out;
}
sockaddr_in6 ipv6(const char* text) {
  sockaddr_in6 out = {};
  out.sin6_family = AF_INET6;
  EXPECT_EQ(::inet_pton(AF_INET6, text, &out.sin6_addr), 1);
  return out;
}
bool trusts(const TrustedProxies& proxies, const char* text) {
  if (std::string_view(text).find(':') == std::string_view::npos) {
    const sockaddr_in peer = ipv4(text);
    return proxies.trusts(reinterpret_cast<const sockaddr*>(&peer));
  }
  const sockaddr_in6 peer = ipv6(text);
  return proxies.trusts(reinterpret_cast<const sockaddr*>(&peer));
}

TEST(TrustedProxies, PeersAreThoseOfTheNetworks) {
  const TrustedProxies proxies({"10.0.0.0/9", "192.0.2.7", "fd00::/7", "2001:db8::1"});
  for (const char* text : {"10.0.0.1", "10.127.255.255", "192.0.2.7", "::ffff:10.1.2.3", "fd12::1",
                           "fc00::", "2001:db8::1"}) {
    EXPECT_TRUE(trusts(proxies, text)) << text;
  }
  for (const char* text : {"10.128.0.0", "192.0.2.8", "11.0.0.1", "::1", "127.0.0.1",
                           "fe00::", "2001:db8::2", "::ffff:10.128.0.0", "::10.0.0.1"}) {
    EXPECT_FALSE(trusts(proxies, text)) << text;
  }
  const sockaddr file = {.sa_family = AF_UNIX, .sa_data = {}};
  EXPECT_FALSE(proxies.trusts(&file));
  EXPECT_TRUE(TrustedProxies({"unix"}).trusts(&file));
  EXPECT_TRUE(trusts(TrustedProxies({"0.0.0.0/0"}), "8.8.8.8"));
  EXPECT_FALSE(trusts(TrustedProxies({"0.0.0.0/0"}), "2001:db8::1"));
  EXPECT_TRUE(trusts(TrustedProxies({"::/0"}), "8.8.8.8"));
  EXPECT_FALSE(trusts(TrustedProxies(), "127.0.0.1"));
}

TEST(TrustedProxies, WhatIsNoNetworkIsRefusedByName) {
  for (const char* text : {"", "/8", "10.0.0.0/33", "10.0.0.0/-1", "10.0.0.0/", "10.0.0.0/8/8",
                           "::/129", "10.0.0", "localhost", "10.0.0.1:80", "[::1]", "UNIX"}) {
    try {
      TrustedProxies({text});
      ADD_FAILURE() << text;
    } catch (const Error& error) {
      EXPECT_EQ(std::string(error.what()).find("--trusted-proxy: got"), 0U) << error.what();
    }
  }
}

TEST(TrustedProxies, TheClientIsTheLastThatIsNoProxy) {
  const TrustedProxies proxies({"10.0.0.0/8", "127.0.0.0/8"});
  const auto client = [&](std::vector<std::string> values) {
    std::vector<Header> headers = {{"host", "localhost"}};
    for (std::string& value : values) headers.push_back({"x-forwarded-for", std::move(value)});
    return proxies.client_address(headers, "10.0.0.1");
  };
  EXPECT_EQ(client({}), "10.0.0.1");
  EXPECT_EQ(client({"203.0.113.9"}), "203.0.113.9");
  EXPECT_EQ(client({"6.6.6.6, 203.0.113.9"}), "203.0.113.9");
  EXPECT_EQ(client({"6.6.6.6,203.0.113.9 ,\t10.2.3.4"}), "203.0.113.9");
  EXPECT_EQ(client({"6.6.6.6", "203.0.113.9", "10.2.3.4"}), "203.0.113.9");
  EXPECT_EQ(client({"10.7.7.7, 10.2.3.4"}), "10.7.7.7");
  EXPECT_EQ(client({"[2001:db8::5]:4711"}), "2001:db8::5");
  EXPECT_EQ(client({"2001:DB8:0::5"}), "2001:db8::5");
  EXPECT_EQ(client({"203.0.113.9:80"}), "203.0.113.9");
  EXPECT_EQ(client({"::ffff:203.0.113.9"}), "203.0.113.9");
  EXPECT_EQ(client({"127.0.0.1"}), "");
  // What no proxy writes: the nearest that is known.
  for (const char* text : {"unknown", "", ",", "203.0.113.9,", "203.0.113.9, _hidden", "[::1",
                           "[::1]x", "1.2.3.4.5", "\"203.0.113.9\""}) {
    EXPECT_EQ(client({text}), "10.0.0.1") << text;
  }
  EXPECT_EQ(client({"203.0.113.9, nonsense, 10.9.9.9"}), "10.9.9.9");
}

// A server whose proxy is this machine, and which notes whose requests it has answered.
struct ProxiedServerTest : ::testing::Test {
  void serve(const std::vector<std::string>& trusted) {
    HttpOptions options;
    options.max_connections_per_address = 2;
    options.proxies = TrustedProxies(trusted);
    Router router;
    router.add({"GET", "/api/v1/held", BodyKind::kNone,
                [this](const Request&, const Respond& respond) {
                  const std::lock_guard lock(mutex);
                  held.push_back(respond);
                },
                false});
    router.add({"GET", "/api/v1/healthz", BodyKind::kNone,
                at_once([](const Request&) { return json_response(200, "{}"); }), false});
    server = std::make_unique<HttpServer>(
        options, std::move(router), [](std::string_view) { return std::nullopt; },
        [this](const Exchange& exchange) {
          const std::lock_guard lock(mutex);
          addresses.push_back(exchange.address);
        });
    server->start();
  }
  [[nodiscard]] static std::string get(const std::string& path, const std::string& fields) {
    return "GET /api/v1/" + path + " HTTP/1.1\r\nHost: localhost\r\n" + fields + "\r\n";
  }
  std::string ask(const std::string& fields) {
    Client client(server->port());
    client.send(get("healthz", fields));
    return status(client.read());
  }
  void wait_for_held(size_t count) {
    for (int i = 0; i < 500; ++i) {
      {
        const std::lock_guard lock(mutex);
        if (held.size() == count) return;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    FAIL() << "want " << count << " requests";
  }
  std::mutex mutex;
  std::vector<std::string> addresses;
  std::vector<Respond> held;
  std::unique_ptr<HttpServer> server;
};

TEST_F(ProxiedServerTest, AClientBehindAProxyIsKnownByItsAddress) {
  serve({"127.0.0.0/8"});
  EXPECT_EQ(ask("X-Forwarded-For: 6.6.6.6, 203.0.113.9\r\n"), "200");
  EXPECT_EQ(ask(""), "200");
  server->stop(1.0);
  EXPECT_EQ(addresses, (std::vector<std::string>{"203.0.113.9", ""}));
}

TEST_F(ProxiedServerTest, AnybodyElseMayWriteWhatHeLikes) {
  serve({"10.0.0.0/8", "unix"});
  EXPECT_EQ(ask("X-Forwarded-For: 203.0.113.9\r\n"), "200");
  server->stop(1.0);
  EXPECT_EQ(addresses, std::vector<std::string>{""});
}

TEST_F(ProxiedServerTest, RequestsAtOnceAreLimitedByClient) {
  serve({"127.0.0.0/8"});
  const std::string one = "X-Forwarded-For: 203.0.113.9\r\n";
  Client first(server->port());
  Client second(server->port());
  first.send(get("held", one));
  second.send(get("held", one));
  wait_for_held(2);
  EXPECT_EQ(ask(one), "503");
  EXPECT_EQ(ask("X-Forwarded-For: 203.0.113.10\r\n"), "200");
  {
    const std::lock_guard lock(mutex);
    held[0](json_response(200, "{}"));
  }
  EXPECT_EQ(status(first.read()), "200");
  // The count falls when the answer has been written, which its reader may see a moment before.
  std::string again = ask(one);
  for (int i = 0; i < 100 && again == "503"; ++i) again = ask(one);
  EXPECT_EQ(again, "200");
}

}  // namespace
}  // namespace strata::server
