// SPDX-License-Identifier: Apache-2.0
// Sockets of files, and the names of peers.
#include "server/http/listener.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <memory>
#include <vector>

#include "server/http/server.h"
#include "tests/base/temp_dir.h"
#include "tests/server/http/client.h"

namespace strata::server {
namespace {

TEST(Listener, ServesAUnixSocketWithoutALimitByAddress) {
  const strata::testing::TempDir dir;
  HttpOptions options;
  options.socket_path = dir.file("s");
  options.socket_mode = 0660;
  options.max_connections_per_address = 1;
  Router router;
  router.add({"GET", "/x", BodyKind::kNone,
              at_once([](const Request&) { return json_response(200, "{}"); }), false});
  auto server = std::make_unique<HttpServer>(
      options, std::move(router), [](std::string_view) { return std::optional<Caller>(); });
  server->start();
  struct stat info = {};
  ASSERT_EQ(::lstat(options.socket_path.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 07777, 0660u);
  std::vector<std::unique_ptr<Client>> clients;
  for (int i = 0; i < 3; ++i) {
    clients.push_back(std::make_unique<Client>(options.socket_path));
    clients.back()->send("GET /x HTTP/1.1\r\nHost: localhost\r\n\r\n");
    EXPECT_EQ(status(clients.back()->read()), "200");
  }
  Client stranger(options.socket_path);
  stranger.send("GET /x HTTP/1.1\r\nHost: :80\r\n\r\n");
  EXPECT_EQ(status(stranger.read()), "421") << "a socket has no name that a Host could have";
  const std::string path = options.socket_path;
  server.reset();
  EXPECT_NE(::lstat(path.c_str(), &info), 0) << "the file stays";
}

TEST(Listener, TakesTheFileOfOneThatIsGoneAndOfNobodyElse) {
  const strata::testing::TempDir dir;
  ListenAddress address;
  address.path = dir.file("s");
  const auto fault = [&] { return strata::testing::error_of([&] { const Listener l(address); }); };
  {
    const Listener first(address);
    EXPECT_NE(fault().find("--listen unix:" + address.path + ": another server is running there"),
              std::string::npos)
        << fault();
    // A crash leaves the file; here a link keeps it beyond the end.
    ASSERT_EQ(::rename(address.path.c_str(), dir.file("kept").c_str()), 0);
  }
  ASSERT_EQ(::rename(dir.file("kept").c_str(), address.path.c_str()), 0);
  EXPECT_EQ(fault(), "");
  EXPECT_TRUE(dir.names().empty()) << "its own file goes with it";
  strata::testing::write_bytes(address.path, "precious");
  EXPECT_NE(fault().find("no socket"), std::string::npos) << fault();
  EXPECT_EQ(strata::testing::read_bytes(address.path), "precious");
  address.path = dir.file(std::string(200, 'x'));
  EXPECT_NE(fault().find("a socket's may have 107"), std::string::npos) << fault();
  address.path = dir.file("missing/s");
  EXPECT_NE(fault().find("No such file"), std::string::npos) << fault();
}

TEST(Listener, AsksForAnotherServerWhereAPortIsTakenAlone) {
  const auto fault = [](const ListenAddress& address) {
    return strata::testing::error_of([&] { const Listener l(address); });
  };
  const Listener first({.host = "127.0.0.1"});
  EXPECT_EQ(fault({.host = "127.0.0.1", .port = first.port()}),
            fmt::format("--listen 127.0.0.1:{}: Address already in use; is another server running "
                        "there?",
                        first.port()));
  // Of a network for documentation (RFC 5737), which no machine has.
  EXPECT_EQ(fault({.host = "192.0.2.1"}), "--listen 192.0.2.1:0: Cannot assign requested address");
}

TEST(Listener, NamesPeersButThoseOfThisMachine) {
  const auto v4 = [](const char* text) {
    sockaddr_in peer = {};
    peer.sin_family = AF_INET;
    ::inet_pton(AF_INET, text, &peer.sin_addr);
    return remote_peer_address(reinterpret_cast<const sockaddr*>(&peer));
  };
  const auto v6 = [](const char* text) {
    sockaddr_in6 peer = {};
    peer.sin6_family = AF_INET6;
    ::inet_pton(AF_INET6, text, &peer.sin6_addr);
    return remote_peer_address(reinterpret_cast<const sockaddr*>(&peer));
  };
  EXPECT_EQ(v4("127.8.0.1"), "");
  EXPECT_EQ(v4("10.0.0.1"), "10.0.0.1");
  EXPECT_EQ(v6("::1"), "");
  EXPECT_EQ(v6("::ffff:127.0.0.1"), "");
  EXPECT_EQ(v6("::ffff:10.0.0.1"), "::ffff:10.0.0.1");
  EXPECT_EQ(v6("fe80::1"), "fe80::1");
  sockaddr_un local = {};
  local.sun_family = AF_UNIX;
  EXPECT_EQ(remote_peer_address(reinterpret_cast<const sockaddr*>(&local)), "");
}

}  // namespace
}  // namespace strata::server
