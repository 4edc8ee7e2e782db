// SPDX-License-Identifier: Apache-2.0
// How many connections may be open, from where, and what they take.
#include "server/http/places.h"

#include <gtest/gtest.h>
#include <ifaddrs.h>
#include <malloc.h>

#include <thread>

#include "base/clock.h"
#include "tests/server/http/server_fixture.h"

namespace strata::server {
namespace {

TEST(ConnectionLimit, CountsByAddressButForLoopback) {
  ConnectionLimit limit(4, 2, SharedLimit(1000));
  EXPECT_EQ(limit.admit_address("10.0.0.1"), "");
  EXPECT_EQ(limit.admit_address("10.0.0.1"), "");
  EXPECT_EQ(limit.admit_address("10.0.0.1"), "--max-connections-per-address");
  EXPECT_EQ(limit.admit_address(""), "");
  EXPECT_EQ(limit.admit_address(""), "");
  EXPECT_EQ(limit.admit_address(""), "--max-connections");
  limit.release("10.0.0.1");
  EXPECT_EQ(limit.num_open(), 3);
  EXPECT_EQ(limit.admit_address("10.0.0.1"), "");
}

TEST(ConnectionLimit, AnAddressHasHalfOfTheRoom) {
  SharedLimit bytes(1000);
  ConnectionLimit limit(9, 9, bytes);
  EXPECT_EQ(limit.admit_address("10.0.0.1"), "");
  EXPECT_EQ(limit.admit_address(""), "");
  int64_t one = 0, other = 0;
  EXPECT_TRUE(limit.try_resize_held_bytes("10.0.0.1", one, 500));
  EXPECT_FALSE(limit.try_resize_held_bytes("10.0.0.1", one, 501));
  EXPECT_EQ(one, 500);
  EXPECT_FALSE(limit.try_resize_held_bytes("", other, 501));
  EXPECT_TRUE(limit.try_resize_held_bytes("", other, 500));
  EXPECT_TRUE(limit.try_resize_held_bytes("10.0.0.1", one, 100));
  EXPECT_TRUE(limit.try_resize_held_bytes("", other, 900));
  EXPECT_EQ(bytes.used(), 1000);
  EXPECT_TRUE(limit.try_resize_held_bytes("10.0.0.1", one, 0));
  EXPECT_TRUE(limit.try_resize_held_bytes("", other, 0));
  EXPECT_EQ(bytes.used(), 0);
}

// A proxy's connections are nobody's: while they carry a client's requests they are that client's.
TEST(ConnectionLimit, AClientBehindAProxyHasHalfOfTheBytes) {
  ConnectionLimit limit(100, 100, SharedLimit(1000));
  std::vector<std::unique_ptr<ProxiedRequest>> held;
  for (int i = 0; i < 5; ++i)
    held.push_back(std::make_unique<ProxiedRequest>(limit, "10.0.0.1", 100));
  for (const auto& one : held) EXPECT_EQ(one->exceeded_limit_option(), "");
  EXPECT_EQ(ProxiedRequest(limit, "10.0.0.1", 100).exceeded_limit_option(),
            "--max-connection-bytes");
  EXPECT_EQ(ProxiedRequest(limit, "10.0.0.2", 100).exceeded_limit_option(), "");
  held.pop_back();
  EXPECT_EQ(ProxiedRequest(limit, "10.0.0.1", 100).exceeded_limit_option(), "");
}

// For one that has no space for it alone nobody need make way.
TEST(ConnectionLimit, WhatIsLargerThanAnAddresssHalfIsRefusedForItself) {
  const ConnectionLimit limit(9, 9, SharedLimit(1000));
  EXPECT_TRUE(limit.may_have("10.0.0.1", 500));
  EXPECT_FALSE(limit.may_have("10.0.0.1", 501));
  EXPECT_TRUE(limit.may_have("", 501));
}

// As much of a connection as a place needs.
struct Guest {
  struct {
    [[nodiscard]] bool is_secured() const { return false; }
    void close() {}
  } stream;
  std::string buffer;
  std::string counted, tenant;
  int64_t held = 0;
  uint64_t idle_order = 0;
  bool has_place = false, is_evicted = false;
};

// One whose acceptance ended before it had one, or behind a refusal.
TEST(Places, WhoHasNoneGivesNoneBack) {
  Places<Guest> places(ConnectionLimit(1, 9, SharedLimit(1 << 20)));
  Guest first, second, third;
  EXPECT_EQ(places.claim_place(first), "");
  places.release_place(second);
  EXPECT_EQ(places.limit().num_open(), 1);
  places.set_tenant(first, "tenant");  // nobody can have its place
  EXPECT_EQ(places.claim_place(third), "--max-connections");
  places.release_place(third);
  EXPECT_EQ(places.limit().num_open(), 1);
  places.release_place(first);
  places.release_place(first);
  EXPECT_EQ(places.limit().num_open(), 0);

  // Of one for whose bytes there is no space either.
  Places<Guest> small(ConnectionLimit(9, 9, SharedLimit(100)));
  Guest large;
  EXPECT_EQ(small.claim_place(large), "--max-connection-bytes");
  small.release_place(large);
  EXPECT_EQ(small.limit().num_open(), 0);
}

struct Idle {
  std::string tenant;
  uint64_t idle_order = 0;
};

TEST(IdleConnections, OfTenantsTheOldestMakesWay) {
  IdleConnections<Idle> idles;
  Idle first = {"one"}, second = {"other"}, third = {"one"};
  for (Idle* idle : {&first, &second, &third}) idles.begin_idle(*idle);
  EXPECT_EQ(idles.victim(), &first);
  idles.end_idle(first);  // it asks something
  EXPECT_EQ(idles.victim(), &second);
  idles.begin_idle(first);
  idles.remove(second);
  EXPECT_EQ(idles.victim(), &third);
  idles.remove(third);
  idles.remove(first);
  EXPECT_EQ(idles.victim(), nullptr);
}

// Who showed no key makes way first, whatever it does, the oldest before the others.
TEST(IdleConnections, StrangersMakeWay) {
  IdleConnections<Idle> idles;
  Idle office[3], strange[2];
  for (Idle& idle : office) {
    idles.begin_idle(idle);
    idles.end_idle(idle);
    EXPECT_EQ(idles.victim(), &idle) << "it has not said yet who it is";
    idles.set_tenant(idle, "office");
    EXPECT_EQ(idles.victim(), nullptr) << "it is answered";
  }
  for (Idle& idle : office) idles.begin_idle(idle);
  for (Idle& idle : strange) idles.begin_idle(idle);
  EXPECT_EQ(idles.victim(), &strange[0]);
  idles.end_idle(strange[0]);
  idles.set_tenant(strange[0], "");
  EXPECT_EQ(idles.victim(), &strange[1]);
  idles.remove(strange[1]);
  EXPECT_EQ(idles.victim(), &strange[0]);
  idles.set_tenant(office[0], "");  // of its key nothing holds now
  idles.remove(strange[0]);
  EXPECT_EQ(idles.victim(), &office[0]);
  idles.remove(office[0]);
  EXPECT_EQ(idles.victim(), &office[1]);
}

TEST_F(HttpServerTest, SilentConnectionsShutNobodyOut) {
  options.max_connections = 3;
  options.header_timeout = 30;
  serve();
  const Client silent[2] = {Client(server->port()), Client(server->port())};
  const Client half(server->port());
  half.send("GET /api/v1/healthz HTTP/1.1\r\nHost:");
  for (int i = 0; i < 4; ++i) {
    Client client(server->port());
    client.send(head("GET /api/v1/healthz"));
    EXPECT_EQ(status(client.read()), "200") << i;
  }
  EXPECT_TRUE(silent[0].closes(5));
}

// Nor do those that ask for what needs no key, and stay.
TEST_F(HttpServerTest, ConnectionsWithoutAKeyShutNobodyOut) {
  options.max_connections = 2;
  serve();
  std::vector<std::unique_ptr<Client>> open;
  const auto ask_on_a_new_one = [&](const char* line) {
    open.push_back(std::make_unique<Client>(server->port()));
    open.back()->send(line == std::string_view("healthz")
                          ? "GET /api/v1/healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
                          : head("GET /api/v1/parked"));
    return status(open.back()->read());
  };
  for (int i = 0; i < 3; ++i) EXPECT_EQ(ask_on_a_new_one("healthz"), "200") << i;
  for (int i = 0; i < 2; ++i) EXPECT_EQ(ask_on_a_new_one("parked"), "200") << i;
  for (auto& one : open) one->send(head("POST /api/v1/park", length(2)) + "{}");
  await_parked(2);
  EXPECT_EQ(ask_on_a_new_one("parked"), "503") << "who waits with a key for an answer stays";
}

// Nor those that ask for much, and read none of it.
TEST_F(HttpServerTest, StrangersThatDoNotReadShutNobodyOut) {
  options.max_connections = 3;
  options.body_timeout = 30;
  serve();
  std::vector<std::unique_ptr<Client>> unread;
  for (int i = 0; i < 3; ++i) {
    unread.push_back(std::make_unique<Client>(server->port()));
    unread.back()->send("GET /api/v1/open HTTP/1.1\r\nHost: localhost\r\n\r\n");
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(200));  // their answers are under way
  EXPECT_EQ(status(ask(head("GET /api/v1/parked"))), "200");
  EXPECT_EQ(status(ask(head("GET /api/v1/parked"))), "200");
}

// Of this machine, other than loopback; 0: it has none.
in_addr_t other_address() {
  in_addr_t out = 0;
  ifaddrs* all = nullptr;
  if (::getifaddrs(&all) != 0) return 0;
  for (const ifaddrs* one = all; one != nullptr; one = one->ifa_next) {
    if (one->ifa_addr == nullptr || one->ifa_addr->sa_family != AF_INET) continue;
    const in_addr_t address = reinterpret_cast<const sockaddr_in*>(one->ifa_addr)->sin_addr.s_addr;
    if ((ntohl(address) >> 24) != 127) out = address;
  }
  ::freeifaddrs(all);
  return out;
}

// One address holds all connections, and says nothing: another is served all the same.
TEST_F(HttpServerTest, AnIdleConnectionMakesWayForAnotherAddress) {
  sockaddr_in from = {};
  from.sin_family = AF_INET;
  from.sin_addr.s_addr = other_address();
  if (from.sin_addr.s_addr == 0) GTEST_SKIP() << "this machine has no address but loopback";
  options.host = "0.0.0.0";
  options.max_connections = 4;
  options.header_timeout = 20;
  serve();
  from.sin_port = htons(static_cast<uint16_t>(server->port()));
  std::vector<int> held;
  for (int i = 0; i < 4; ++i) {
    held.push_back(::socket(AF_INET, SOCK_STREAM, 0));
    ASSERT_EQ(::connect(held.back(), reinterpret_cast<sockaddr*>(&from), sizeof from), 0);
  }
  const double end = now_seconds() + 5;
  std::string got;
  const std::string request = head("GET /api/v1/healthz");
  while (got != "200" && now_seconds() < end) got = status(ask(request));
  EXPECT_EQ(got, "200");
  // The oldest one has ended, the others have not.
  char byte = 0;
  EXPECT_EQ(::recv(held[0], &byte, 1, 0), 0);
  for (int i = 1; i < 4; ++i)
    EXPECT_LT(::recv(held[static_cast<size_t>(i)], &byte, 1, MSG_DONTWAIT), 0);
  for (const int socket : held) ::close(socket);
}

// Idle ones, and headers that are not whole, are in a budget, and it is given back.
TEST_F(HttpServerTest, ConnectionsAndTheirHeadersHaveRoomInAll) {
  options.connections = SharedLimit(10 * connection_bytes(false));
  options.header_timeout = 5;
  serve();
  const auto used = [&] { return options.connections.used(); };
  const auto becomes = [&](int64_t bytes) {
    const double end = now_seconds() + 5;
    while (used() != bytes && now_seconds() < end) std::this_thread::yield();
    return used() == bytes;
  };
  std::vector<std::unique_ptr<Client>> idle;
  const auto add_idle = [&] {
    idle.push_back(std::make_unique<Client>(server->port()));
    idle.back()->send(head("GET /api/v1/parked"));
    EXPECT_EQ(status(idle.back()->read()), "200");
  };
  for (int i = 0; i < 8; ++i) add_idle();
  EXPECT_TRUE(becomes(8 * connection_bytes(false)));
  const std::string refused =
      ask("GET /api/v1/parked HTTP/1.1\r\nX: " + std::string(12 << 10, 'x'));
  EXPECT_TRUE(becomes(8 * connection_bytes(false)));
  EXPECT_EQ(status(refused), "503");
  EXPECT_NE(refused.find("--max-connection-bytes"), std::string::npos);
  for (int i = 0; i < 2; ++i) add_idle();
  EXPECT_TRUE(becomes(10 * connection_bytes(false)));
  add_idle();
  EXPECT_TRUE(idle.front()->closes(5)) << "it makes way";
  EXPECT_TRUE(becomes(10 * connection_bytes(false)));
  for (size_t i = 1; i < idle.size(); ++i)
    idle[i]->send(head("POST /api/v1/park", length(2)) + "{}");
  await_parked(10);
  const std::string one_too_many = Client(server->port()).read();
  EXPECT_EQ(status(one_too_many), "503");
  EXPECT_NE(one_too_many.find("--max-connection-bytes"), std::string::npos);
  for (const Respond& respond : parked) respond(json_response(200, "{}"));
  idle.clear();
  EXPECT_TRUE(becomes(0));
}

// What a long header took is given back when its request is answered.
TEST_F(HttpServerTest, AnIdleConnectionGivesItsHeaderBack) {
  serve();
  Client client(server->port());
  client.send(head("POST /api/v1/park", length(2) + "X: " + std::string(12 << 10, 'x') + "\r\n") +
              "{}");
  const double end = now_seconds() + 5;
  while (options.connections.used() <= connection_bytes(false) + (24 << 10) && now_seconds() < end)
    std::this_thread::yield();
  EXPECT_GE(options.connections.used(), connection_bytes(false) + (16 << 10));
  while (body(ask(head("GET /api/v1/parked"))) != "1" && now_seconds() < end) {
  }
  std::thread([this] { parked.at(0)(json_response(200, "done")); }).join();
  EXPECT_EQ(body(client.read()), "done");
  while (options.connections.used() != connection_bytes(false) && now_seconds() < end)
    std::this_thread::yield();
  EXPECT_EQ(options.connections.used(), connection_bytes(false));
}

#ifdef __GLIBC__
// Refused by its header, a connection lingers so that its peer reads why; it takes what it counts
// with, however many fields the header had.
TEST_F(HttpServerTest, AConnectionThatLingersKeepsLittle) {
  constexpr int kConnections = 200;
  options.header_timeout = 5;
  serve();
  std::string request = "GET /api/v1/parked HTTP/1.1\r\nHost: localhost\r\n";
  for (int i = 0; i < 90; ++i) request += "a:\r\n";
  request += "\r\n";
  std::vector<std::unique_ptr<Client>> lingering;
  const auto connect = [&](int count) {
    for (int i = 0; i < count; ++i) {
      lingering.push_back(std::make_unique<Client>(server->port()));
      lingering.back()->send(request);
      EXPECT_EQ(status(lingering.back()->read()), "401");
    }
  };
  connect(10);
  const size_t before = ::mallinfo2().uordblks;
  connect(kConnections);
  EXPECT_LT((::mallinfo2().uordblks - before) / kConnections, connection_bytes(false));
}

// Trailers are fields too, and nobody reads them.
TEST_F(HttpServerTest, ARequestThatWaitsKeepsNoTrailers) {
  constexpr int kConnections = 50;
  options.header_timeout = 5;
  serve();
  std::string request =
      head("POST /api/v1/park", "Transfer-Encoding: chunked\r\n") + "2\r\n{}\r\n0\r\n";
  for (int i = 0; i < 1500; ++i) request += "a:\r\n";
  request += "\r\n";
  std::vector<std::unique_ptr<Client>> waiting;
  const auto connect = [&](size_t count) {
    for (size_t i = 0; i < count; ++i) {
      waiting.push_back(std::make_unique<Client>(server->port()));
      waiting.back()->send(request);
    }
    const double end = now_seconds() + 5;
    while (body(ask(head("GET /api/v1/parked"))) != std::to_string(waiting.size()) &&
           now_seconds() < end) {
    }
  };
  connect(5);
  const size_t before = ::mallinfo2().uordblks;
  connect(kConnections);
  EXPECT_LT((::mallinfo2().uordblks - before) / kConnections, connection_bytes(false));
}
#endif

}  // namespace
}  // namespace strata::server
