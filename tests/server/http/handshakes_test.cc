// SPDX-License-Identifier: Apache-2.0
// TLS handshakes: in pieces, cut into records, unfinished in numbers.
#include "server/http/handshakes.h"

#include <gtest/gtest.h>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <filesystem>
#include <memory>
#include <optional>
#include <vector>

#include "server/http/server.h"
#include "tests/base/temp_dir.h"
#include "tests/server/http/tls_client.h"

namespace strata::server {
namespace {

// A client whose bytes go through memory, to be sent in whatever form.
class MemoryClient {
 public:
  MemoryClient()
      : context_(SSL_CTX_new(TLS_client_method()), &SSL_CTX_free),
        ssl_(SSL_new(context_.get()), &SSL_free),
        in_(BIO_new(BIO_s_mem())),
        out_(BIO_new(BIO_s_mem())) {
    SSL_set_bio(ssl_.get(), in_, out_);
    SSL_set_connect_state(ssl_.get());
  }
  // What it has to say, after what arrived.
  std::string shake(std::string_view arrived = {}) {
    BIO_write(in_, arrived.data(), static_cast<int>(arrived.size()));
    SSL_do_handshake(ssl_.get());
    std::string out(BIO_ctrl_pending(out_), ' ');
    BIO_read(out_, out.data(), static_cast<int>(out.size()));
    return out;
  }
  [[nodiscard]] bool is_open() const { return SSL_is_init_finished(ssl_.get()) == 1; }

 private:
  std::unique_ptr<SSL_CTX, decltype(&SSL_CTX_free)> context_;
  std::unique_ptr<SSL, decltype(&SSL_free)> ssl_;
  BIO *in_, *out_;  // ssl_'s
};

// Two ends of a connection.
struct Pair {
  explicit Pair(boost::asio::io_context& io) {
    int ends[2] = {-1, -1};
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
    stream = std::make_unique<Stream>(
        Stream::Protocol::socket(io, Stream::Protocol(AF_UNIX, 0), ends[0]), nullptr);
    peer = ends[1];
  }
  ~Pair() { ::close(peer); }
  Pair(const Pair&) = delete;
  Pair& operator=(const Pair&) = delete;
  std::unique_ptr<Stream> stream;
  int peer;
};

struct HandshakesTest : ::testing::Test {
  HandshakesTest() {
    options.tls = make_files(dir.path(), "one");
    options.header_timeout = 5;
  }
  void serve() {
    Router router;
    router.add({"GET", "/x", BodyKind::kNone,
                at_once([](const Request&) { return json_response(200, "{}"); }), false});
    server = std::make_unique<HttpServer>(options, std::move(router),
                                          [](std::string_view) { return std::optional<Caller>(); });
    server->start();
  }

  strata::testing::TempDir dir;
  HttpOptions options;
  std::unique_ptr<HttpServer> server;
};

TEST(Hello, IsWholeWhenItsMessageIs) {
  const std::string hello = MemoryClient().shake();
  for (size_t size = 0; size < hello.size(); ++size)
    EXPECT_TRUE(is_partial_client_hello(std::string_view(hello).substr(0, size))) << size;
  EXPECT_FALSE(is_partial_client_hello(hello));
  EXPECT_FALSE(is_partial_client_hello(hello + "more"));
}

TEST(Hello, WhatIsNoneIsNotWaitedFor) {
  const std::string hello = MemoryClient().shake();
  const auto with = [&](size_t at, char byte) {
    std::string changed = hello.substr(0, hello.size() / 2);
    changed[at] = byte;
    return is_partial_client_hello(changed);
  };
  EXPECT_TRUE(with(1, 3));
  EXPECT_FALSE(with(0, 23)) << "another record";
  EXPECT_FALSE(with(3, 127)) << "a record of 32 KiB";
  EXPECT_FALSE(with(5, 2)) << "another message";
  EXPECT_FALSE(with(6, 1)) << "a message of 64 KiB";
  EXPECT_FALSE(is_partial_client_hello("GET / HTTP/1.1"));
  EXPECT_FALSE(is_partial_client_hello(std::string("\x16\x03\x01\x00\x00", 5)))
      << "an empty record";
  EXPECT_TRUE(is_partial_client_hello(""));
  const std::string message("\x01\x00\x00\x40\x03\x03\x00\x00", 8);
  std::string many;
  for (const char byte : message) {
    EXPECT_TRUE(is_partial_client_hello(many));
    many += std::string("\x16\x03\x01\x00\x01", 5) + byte;
  }
  EXPECT_FALSE(is_partial_client_hello(many)) << "of which each read would go over all";
}

TEST_F(HandshakesTest, AHelloMayComeInPiecesAndInSeveralRecords) {
  serve();
  const auto head = [](size_t size) {
    return std::string("\x16\x03\x01", 3) + static_cast<char>(size >> 8) +
           static_cast<char>(size & 255);
  };
  for (const bool in_records : {false, true}) {
    MemoryClient tls;
    std::string hello = tls.shake();
    if (in_records) {
      const std::string message = hello.substr(5);
      hello = head(3) + message.substr(0, 3) + head(message.size() - 3) + message.substr(3);
    }
    Client client(server->port());
    for (const char byte : hello) client.send(std::string(1, byte));
    std::string arrived = client.read(0.5);
    while (!tls.is_open() && !arrived.empty()) {
      client.send(tls.shake(arrived));
      arrived.clear();
    }
    EXPECT_TRUE(tls.is_open()) << in_records;
  }
}

// In a flood the oldest end, and whoever comes is served.
TEST_F(HandshakesTest, TheUnfinishedMakeRoomForThoseThatCome) {
  options.max_handshakes = 8;
  serve();
  const std::string hello = MemoryClient().shake();
  std::vector<std::unique_ptr<Client>> flood;
  for (int i = 0; i < 40; ++i) {
    flood.push_back(std::make_unique<Client>(server->port()));
    flood.back()->send(hello.substr(0, i % 2 == 0 ? 0 : hello.size() / 2));
  }
  for (int i = 0; i < 10; ++i) {
    TlsClient client(server->port());
    EXPECT_TRUE(client.is_open()) << i;
    client.send("GET /x HTTP/1.1\r\nHost: localhost:" + std::to_string(server->port()) +
                "\r\n\r\n");
    EXPECT_EQ(status(client.read()), "200");
  }
  EXPECT_TRUE(flood.front()->closes(1));
  EXPECT_FALSE(flood.back()->closes(0.1));
}

using Fault = std::optional<boost::system::error_code>;

TEST(Handshakes, TheOldestOfTooManyEnds) {
  boost::asio::io_context io;
  Handshakes handshakes(2);
  const Pair pairs[] = {Pair(io), Pair(io), Pair(io)};
  Fault faults[3];
  for (int i = 0; i < 3; ++i) {
    boost::asio::co_spawn(
        io, handshakes.handshake(*pairs[i].stream, io),
        [&fault = faults[i]](std::exception_ptr, boost::system::error_code got) { fault = got; });
    io.poll();
    io.restart();
  }
  EXPECT_TRUE(faults[0] && *faults[0]);
  EXPECT_FALSE(faults[1]);
  EXPECT_FALSE(faults[2]);
  for (const Pair& pair : pairs) pair.stream->close();
  io.poll();
}

}  // namespace
}  // namespace strata::server
