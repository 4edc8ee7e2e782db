// SPDX-License-Identifier: Apache-2.0
// HttpServer over real sockets of the loopback device, with a client too simple to hide anything.
#include "server/http/server.h"

#include <gtest/gtest.h>
#include <zstd.h>

#include <algorithm>
#include <future>
#include <thread>

#include "base/clock.h"
#include "tests/server/http/server_fixture.h"

namespace strata::server {
namespace {

constexpr size_t kCounted = 20'000;  // more than a connection's own

TEST_F(HttpServerTest, KeepsConnectionsAlive) {
  Client client(server->port());
  for (int i = 0; i < 3; ++i) {
    client.send(head("POST /api/v1/echo?x=1", length(2)) + "{}");
    const std::string response = client.read();
    EXPECT_EQ(status(response), "200");
    EXPECT_EQ(body(response), "t1:{}");
  }
  client.send(head("POST /api/v1/echo", length(2) + "Connection: close\r\n") + "{}");
  EXPECT_NE(client.read().find("Connection: close"), std::string::npos);
  EXPECT_TRUE(client.closes(2));
}

TEST_F(HttpServerTest, ReadsChunkedBodies) {
  const std::string response = ask(head("POST /api/v1/echo", "Transfer-Encoding: chunked\r\n") +
                                   "3\r\n[1,\r\n2\r\n2]\r\n0\r\n\r\n");
  EXPECT_EQ(body(response), "t1:[1,2]");
  EXPECT_EQ(status(ask(head("POST /api/v1/echo", "Transfer-Encoding: chunked\r\n") + "zz\r\n")),
            "400");
}

TEST_F(HttpServerTest, AnswersExpectations) {
  Client client(server->port());
  client.send(head("POST /api/v1/echo", length(2) + "Expect: 100-continue\r\n"));
  EXPECT_EQ(status(client.read()), "100");
  client.send("{}");
  EXPECT_EQ(status(client.read()), "200");
  client.send(head("POST /api/v1/echo", length(2) + "Expect: 100-Continue\r\n"));
  EXPECT_EQ(status(client.read()), "100");
  client.send("{}");
  EXPECT_EQ(status(client.read()), "200");
  client.send(head("GET /api/v1/parked", "Expect: 100-continue\r\n"));
  EXPECT_EQ(status(client.read()), "200") << "there is no body to wait with";
  std::string old = head("POST /api/v1/echo", length(2) + "Expect: 100-continue\r\n");
  old.replace(old.find("HTTP/1.1"), 8, "HTTP/1.0");
  EXPECT_EQ(status(ask(old + "{}")), "200") << "HTTP/1.0 knows no interim answer";
}

TEST_F(HttpServerTest, AsksForAKeyBeforeAnythingElse) {
  const std::string host = "Host: localhost\r\n";
  EXPECT_EQ(status(ask("GET /api/v1/healthz HTTP/1.1\r\n" + host + "\r\n")), "200");
  for (const char* line : {"GET /api/v1/nothing", "POST /api/v1/echo", "PUT /api/v1/read"}) {
    const std::string response =
        ask(std::string(line) + " HTTP/1.1\r\n" + host + length(1000) + "\r\n");
    EXPECT_EQ(status(response), "401") << line;
    EXPECT_NE(body(response), "");
  }
  EXPECT_EQ(status(ask("GET /api/v1/nothing HTTP/1.1\r\n" + host + "X-API-Key: tml-bad\r\n\r\n")),
            "401");
  EXPECT_EQ(status(ask(head("GET /api/v1/nothing"))), "404");
}

TEST_F(HttpServerTest, ATenantBeyondItsLimitIsRefusedBeforeItsBodyIsRead) {
  is_limited = true;
  const std::string refused = ask(head("POST /api/v1/echo", length(1000)));
  EXPECT_EQ(status(refused), "429");
  EXPECT_NE(refused.find("/api/v1/echo"), std::string::npos);
  EXPECT_EQ(status(ask(head("GET /api/v1/nothing"))), "429");
  std::string of_other = head("POST /api/v1/echo", length(2)) + "{}";
  of_other.replace(of_other.find("tml-good"), 8, "tml-other");
  EXPECT_EQ(status(ask(of_other)), "200");
}

TEST_F(HttpServerTest, AKeyMayComeAsABearersToken) {
  const auto answer = [&](const std::string& headers) {
    return status(ask("GET /api/v1/read HTTP/1.1\r\nHost: localhost\r\n" + headers + "\r\n"));
  };
  EXPECT_EQ(answer("Authorization: Bearer tml-good\r\n"), "200");
  EXPECT_EQ(answer("Authorization: bearer   tml-read\r\n"), "200");
  for (const char* given : {"Bearer", "Bearer ", "Bearer tml-bad", "Basic tml-good", "tml-good"}) {
    EXPECT_EQ(answer("Authorization: " + std::string(given) + "\r\n"), "401") << given;
  }
  // A wrong one is told of what was sent.
  const std::string wrong =
      ask("GET /api/v1/read HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer tml-bad\r\n\r\n");
  EXPECT_NE(wrong.find("the key of Authorization: Bearer is not a key"), std::string::npos)
      << wrong;
  // X-API-Key says who it is, where both come.
  EXPECT_EQ(answer("X-API-Key: tml-bad\r\nAuthorization: Bearer tml-good\r\n"), "401");
}

// Before the body is read, and before anything is told of it.
TEST_F(HttpServerTest, HoldsAKeysScopeAgainstTheRoute) {
  const auto answer = [&](const std::string& key, const std::string& line) {
    return ask(line + " HTTP/1.1\r\nHost: localhost\r\nX-API-Key: " + key + "\r\n" +
               (line.starts_with("POST") ? length(1000) : "") + "\r\n");
  };
  EXPECT_EQ(status(answer("tml-read", "GET /api/v1/read")), "200");
  EXPECT_EQ(status(answer("tml-sample", "GET /api/v1/read")), "200");
  EXPECT_EQ(status(answer("tml-sample", "GET /api/v1/sample")), "200");
  EXPECT_EQ(status(answer("tml-good", "GET /api/v1/sample")), "200");
  const std::string refused = answer("tml-read", "GET /api/v1/sample");
  EXPECT_EQ(status(refused), "403");
  EXPECT_NE(refused.find("this key is read-only: GET /api/v1/sample"), std::string::npos);
  for (const char* key : {"tml-read", "tml-sample"}) {
    EXPECT_EQ(status(answer(key, "POST /api/v1/echo")), "403") << key;
    EXPECT_EQ(status(answer(key, "GET /api/v1/nothing")), "404") << key;
  }
  const std::string expired = answer("tml-old", "GET /api/v1/read");
  EXPECT_EQ(status(expired), "401");
  EXPECT_NE(expired.find("has expired"), std::string::npos);
}

TEST_F(HttpServerTest, ChecksHostsAndOrigins) {
  const auto get = [](const std::string& fields) {
    return "GET /api/v1/healthz HTTP/1.1\r\n" + fields + "\r\n";
  };
  EXPECT_EQ(status(ask(get("Host: evil.example\r\n"))), "421");
  EXPECT_EQ(status(ask(get("Host: 127.evil.example\r\n"))), "421");
  EXPECT_EQ(status(ask(get("Host: localhost.evil.example\r\n"))), "421");
  for (const char* none : {"", "Host:\r\n", "Host: a b\r\n", "Host: me@localhost\r\n"})
    EXPECT_EQ(status(ask(get(none))), "400") << none;
  EXPECT_EQ(status(ask(get("Host: localhost:1\r\nOrigin: http://evil.example\r\n"))), "403");
  EXPECT_EQ(status(ask(get("Host: localhost:1\r\nOrigin: null\r\n"))), "403");
  EXPECT_EQ(status(ask(get("Host: localhost:1\r\nOrigin: http://localhost:1\r\n"))), "200");
}

TEST_F(HttpServerTest, BoundsBodies) {
  EXPECT_EQ(status(ask(head("POST /api/v1/echo", length(2 << 20)))), "413");
  EXPECT_EQ(status(ask(head("POST /api/v1/echo", "Content-Length: 99999999999999999999\r\n"))),
            "400");
  const std::string part(64 << 10, ' ');
  Client client(server->port());
  client.send(head("POST /api/v1/echo", "Transfer-Encoding: chunked\r\n"));
  for (int i = 0; i < 40; ++i) {
    if (!client.send("10000\r\n" + part + "\r\n")) break;
  }
  EXPECT_EQ(status(client.read()), "413");
  EXPECT_EQ(status(ask(head("GET /api/v1/echo", "X-Long: " + std::string(17 << 10, 'x') + "\r\n"))),
            "431");
}

// A sign of life is read on the I/O thread, and no rate meters it.
TEST_F(HttpServerTest, ABodyThatEndsEarlyIsToldSo) {
  for (const std::string& more :
       {length(9) + "\r\n{", std::string("Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n")}) {
    Client client(server->port());
    client.send(
        "POST /api/v1/echo HTTP/1.1\r\nHost: localhost\r\nX-API-Key: tml-good\r\n"
        "Content-Type: application/json\r\n" +
        more);
    client.end_writing();
    const std::string response = client.read();
    EXPECT_EQ(status(response), "400");
    EXPECT_NE(response.find("ends before its end"), std::string::npos);
  }
}

TEST_F(HttpServerTest, ASignOfLifeIsShort) {
  EXPECT_EQ(status(ask(head("POST /api/v1/beat", length(16384)) + std::string(16384, ' '))), "200");
  const std::string long_one = ask(head("POST /api/v1/beat", length(16385)));
  EXPECT_EQ(status(long_one), "413");
  EXPECT_NE(long_one.find("limit is 16384"), std::string::npos) << long_one;
  const std::string blanks(1 << 20, ' ');
  std::string packed(ZSTD_compressBound(blanks.size()), '\0');
  packed.resize(ZSTD_compress(packed.data(), packed.size(), blanks.data(), blanks.size(), 3));
  ASSERT_LT(packed.size(), 200U);
  EXPECT_EQ(
      status(ask(head("POST /api/v1/beat", "Content-Encoding: ZSTD\r\n" + length(packed.size())) +
                 packed)),
      "413");
}

// Where no key is needed, HEAD is GET without its body, and another method is no bad login.
TEST_F(HttpServerTest, AnOpenPathNeedsNoKeyForItsOtherMethods) {
  const std::string open = " /api/v1/healthz HTTP/1.1\r\nHost: localhost\r\n";
  const std::string looked = ask("HEAD" + open + "\r\n");
  EXPECT_EQ(status(looked), "200");
  EXPECT_NE(looked.find("Content-Length: 15"), std::string::npos) << looked;
  EXPECT_EQ(looked.find("ok"), std::string::npos);
  const std::string posted = ask("POST" + open + length(1 << 19) + "\r\n");
  EXPECT_EQ(status(posted), "405") << "by its head";
  EXPECT_NE(posted.find("GET"), std::string::npos);
  EXPECT_EQ(status(ask("HEAD /api/v1/read HTTP/1.1\r\nHost: localhost\r\n\r\n")), "401");
}

TEST_F(HttpServerTest, DecompressesZstd) {
  const auto send = [&](const std::string& bytes) {
    return ask(head("POST /api/v1/echo", length(bytes.size()) + "Content-Encoding: zstd\r\n") +
               bytes);
  };
  const auto compressed = [](const std::string& text) {
    std::string out(ZSTD_compressBound(text.size()), 0);
    out.resize(ZSTD_compress(out.data(), out.size(), text.data(), text.size(), 3));
    return out;
  };
  EXPECT_EQ(body(send(compressed("{\"a\":1}"))), "t1:{\"a\":1}");
  EXPECT_EQ(body(send(compressed(std::string(1 << 20, ' ')))).size(), (1u << 20) + 3);
  EXPECT_EQ(status(send(compressed(std::string((1 << 20) + 1, ' ')))), "413");
  EXPECT_EQ(status(send(compressed(std::string(64 << 20, ' ')))), "413");
  EXPECT_EQ(status(send("not zstd")), "400");
  std::string cut = compressed("{\"a\":1,\"b\":[1,2,3]}");
  cut.pop_back();
  EXPECT_EQ(status(send(cut)), "400");
  EXPECT_EQ(status(ask(head("POST /api/v1/echo", length(1) + "Content-Encoding: br\r\n") + "x")),
            "415");
}

TEST_F(HttpServerTest, SlowPeersBlockNobody) {
  Client half(server->port());
  half.send("POST /api/v1/echo HTTP/1.1\r\nHost: loc");
  Client body_missing(server->port());
  body_missing.send(head("POST /api/v1/echo", length(100)) + "x");
  EXPECT_EQ(status(ask(head("POST /api/v1/echo", length(2)) + "{}")), "200");
  EXPECT_TRUE(half.closes(3));
  EXPECT_TRUE(body_missing.closes(3));
}

TEST_F(HttpServerTest, ABodyThatDripsIsCut) {
  options.min_body_rate = 1e6;
  serve();
  Client client(server->port());
  client.send(head("POST /api/v1/echo", length(100)));
  const double begin = now_seconds();
  while (now_seconds() - begin < 1.0 && client.send("x")) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  const std::string response = client.read();
  EXPECT_EQ(status(response), "408");
  EXPECT_NE(response.find("--min-body-rate"), std::string::npos);
}

TEST_F(HttpServerTest, AConnectionThatSaysNothingIsClosedWithinTheHeaderTimeout) {
  const Client client(server->port());
  EXPECT_TRUE(client.closes(2));
}

TEST_F(HttpServerTest, RefusesOneConnectionTooMany) {
  options.max_connections = 2;
  options.header_timeout = 5;
  serve();
  auto first = std::make_unique<Client>(server->port());
  Client second(server->port());
  for (Client* client : {first.get(), &second})
    client->send(head("POST /api/v1/park", length(2)) + "{}");
  await_parked(2);
  const std::string refused = Client(server->port()).read();
  EXPECT_EQ(status(refused), "503");
  EXPECT_NE(refused.find("--max-connections"), std::string::npos);
  parked.front()(json_response(200, "{}"));
  EXPECT_EQ(status(first->read()), "200");
  const double end = now_seconds() + 5;
  const std::string request = head("POST /api/v1/echo", length(2)) + "{}";
  std::string got;
  while (got != "200" && now_seconds() < end) got = status(ask(request));
  EXPECT_EQ(got, "200");
}

// However many requests one tenant has at once, another's is behind one of them at most.
TEST_F(HttpServerTest, TenantsTakeTurnsAtWhatIsReadAndWrittenAtOnce) {
  const std::string body(8 << 10, ' ');
  for (const std::string& many :
       {head("POST /api/v1/slow", length(body.size())) + body, head("GET /api/v1/slow"),
        head("POST /api/v1/slow", length(2)) + "{}"}) {
    order.clear();
    std::vector<std::unique_ptr<Client>> clients;
    for (int i = 0; i < 12; ++i) {
      clients.push_back(std::make_unique<Client>(server->port()));
      clients.back()->send(many.substr(0, many.size() - 1));
    }
    Client other(server->port());
    std::string one = many;
    one.replace(one.find("tml-good"), 8, "tml-other");
    other.send(one.substr(0, one.size() - 1));
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    for (const auto& client : clients) client->send(many.substr(many.size() - 1));
    other.send(one.substr(one.size() - 1));
    EXPECT_EQ(status(other.read()), "200");
    for (const auto& client : clients) EXPECT_EQ(status(client->read()), "200");
    const auto place = std::ranges::find(order, "t2") - order.begin();
    EXPECT_LE(place, 3) << "and not the thirteenth";
  }
}

TEST_F(HttpServerTest, EndpointsWithoutAKeyReadNoBody) {
  EXPECT_EQ(status(ask("GET /api/v1/healthz HTTP/1.1\r\nHost: localhost\r\n"
                       "Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n")),
            "413");
}

TEST_F(HttpServerTest, ATenantWhoseBodiesTakeAllItCanLeavesOthersTheirPart) {
  options.accounts.of(Use::kBody) = SharedLimit(2 << 20);
  options.accounts.of(Use::kBody).set_num_tenants(2);
  options.body_timeout = 5;
  serve();
  const std::string most(600 << 10, ' ');
  const std::string whole = head("POST /api/v1/echo", length(most.size())) + most;
  auto holds = std::make_unique<Client>(server->port());
  holds->send(head("POST /api/v1/echo", length(1 << 20)) + most);
  const double end = now_seconds() + 5;
  while (options.accounts.of(Use::kBody).used() < 600 << 10 && now_seconds() < end) {
  }
  const std::string refused = ask(whole);
  EXPECT_EQ(status(refused), "503");
  EXPECT_NE(refused.find("retry-after"), std::string::npos);
  std::string of_other = head("POST /api/v1/echo", length(300 << 10)) + most.substr(0, 300 << 10);
  of_other.replace(of_other.find("tml-good"), 8, "tml-other");
  EXPECT_EQ(status(ask(of_other)), "200");
  holds.reset();
  while (options.accounts.of(Use::kBody).used() > 0 && now_seconds() < end) {
  }
  EXPECT_EQ(status(ask(whole)), "200");
  EXPECT_EQ(options.accounts.of(Use::kBody).used(), 0);
}

// Passes and samples are put off, nothing else is.
TEST_F(HttpServerTest, WithoutRoomForItsBodyAPassIs429) {
  options.accounts.of(Use::kBody) = SharedLimit(1 << 20);
  serve();
  const auto held = options.accounts.of(Use::kBody).take("t1", 1 << 20);
  for (const auto& [path, wanted] :
       {std::pair("/api/v1/echo", "503"), std::pair("/api/v1/pass", "429")}) {
    const std::string refused =
        ask(head(std::string("POST ") + path, length(kCounted)) + std::string(kCounted, ' '));
    EXPECT_EQ(status(refused), wanted);
    EXPECT_NE(refused.find("--max-body-bytes 1048576"), std::string::npos);
    EXPECT_NE(refused.find("retry-after: 1"), std::string::npos);
  }
}

// Heartbeats and polls: a tenant that has used up its bodies still says that it is there.
TEST_F(HttpServerTest, ASmallBodyNeedsNoRoom) {
  options.accounts.of(Use::kBody) = SharedLimit(1 << 20);
  serve();
  const auto held = options.accounts.of(Use::kBody).take("t1", 1 << 20);
  EXPECT_EQ(status(ask(head("POST /api/v1/echo", length(2)) + "{}")), "200");
  EXPECT_EQ(status(ask(head("POST /api/v1/echo", length(1000)) + std::string(1000, ' '))), "200");
}

// The keys name 3,000; one holds open all the bodies it can, and another one's are read.
TEST_F(HttpServerTest, WithThousandsOfTenantsOneThatHoldsBodiesBackIsNotNoticed) {
  options.accounts.of(Use::kBody) = SharedLimit(64 << 20);
  options.accounts.of(Use::kBody).set_num_tenants(3000);
  options.body_timeout = 5;
  serve();
  const std::string most(1000 << 10, ' ');
  std::vector<std::unique_ptr<Client>> holding;
  for (int i = 0; i < 64; ++i) {
    holding.push_back(std::make_unique<Client>(server->port()));
    holding.back()->send(head("POST /api/v1/echo", length(1 << 20)) + most);
  }
  const double end = now_seconds() + 5;
  while (options.accounts.of(Use::kBody).used() < 30 << 20 && now_seconds() < end) {
  }
  EXPECT_GT(options.accounts.of(Use::kBody).used(), 30 << 20);
  for (int i = 0; i < 10; ++i) {
    std::string of_other = head("POST /api/v1/echo", length(most.size())) + most;
    of_other.replace(of_other.find("tml-good"), 8, "tml-other");
    EXPECT_EQ(status(ask(of_other)), "200") << i;
  }
}

// A string that doubles would take two limits for a body just above half of one.
TEST_F(HttpServerTest, ABodyTakesNoMoreThanItsLimit) {
  options.max_body = options.max_small_body = 1 << 20;
  options.body_timeout = 5;
  serve();
  for (const size_t size : {size_t{700} << 10, (size_t{1} << 20) - 1}) {
    Client client(server->port());
    client.send(head("POST /api/v1/echo", length(size + 1)) + std::string(size, ' '));
    const double end = now_seconds() + 5;
    while (options.accounts.of(Use::kBody).used() < static_cast<int64_t>(size) &&
           now_seconds() < end) {
    }
    EXPECT_LE(options.accounts.of(Use::kBody).used(), (1 << 20) + (64 << 10)) << size;
  }
}

// Whoever does not read what it asked for cannot ask for ever more.
TEST_F(HttpServerTest, ResponsesCountUntilTheyAreRead) {
  options.accounts.of(Use::kResponse) = SharedLimit(60 << 20);
  options.accounts.of(Use::kResponse).set_num_tenants(2);
  options.body_timeout = 5;
  serve();
  const std::string request = head("GET /api/v1/long");
  auto unread = std::make_unique<Client>(server->port());
  unread->send(request);
  const double end = now_seconds() + 5;
  while (options.accounts.of(Use::kResponse).used() < static_cast<int64_t>(kLong) &&
         now_seconds() < end) {
  }
  const std::string refused = ask(request);
  EXPECT_EQ(status(refused), "503");
  EXPECT_NE(refused.find("--max-response-bytes"), std::string::npos);
  EXPECT_EQ(status(ask(head("POST /api/v1/echo", length(2)) + "{}")), "200");
  std::string of_other = head("GET /api/v1/long", "Connection: close\r\n");
  of_other.replace(of_other.find("tml-good"), 8, "tml-other");
  const Client other(server->port());
  other.send(of_other);
  EXPECT_GT(other.read_slowly(), kLong);
  unread.reset();
  const double last = now_seconds() + 5;
  while (options.accounts.of(Use::kResponse).used() > 0 && now_seconds() < last) {
  }
  EXPECT_EQ(options.accounts.of(Use::kResponse).used(), 0);
}

TEST_F(HttpServerTest, AResponseThatCanNeverBeSentIsSaidToBeTooLarge) {
  options.accounts.of(Use::kResponse) = SharedLimit(1 << 20);
  serve();
  const std::string refused = ask(head("GET /api/v1/long"));
  EXPECT_EQ(status(refused), "400");
  EXPECT_NE(refused.find("ask for less"), std::string::npos);
}

// The window is the peer's choice: 8 MiB for a few bytes.
TEST_F(HttpServerTest, WindowsOfZstdCountAsBodies) {
  options.accounts.of(Use::kBody) = SharedLimit(4 << 20);
  serve();
  ZSTD_CCtx* context = ZSTD_createCCtx();
  ZSTD_CCtx_setParameter(context, ZSTD_c_windowLog, 23);
  std::string open_frame(1024, 0);
  ZSTD_outBuffer out = {open_frame.data(), open_frame.size(), 0};
  ZSTD_inBuffer in = {"{}", 2, 0};
  ZSTD_compressStream2(context, &out, &in, ZSTD_e_flush);
  open_frame.resize(out.pos);
  ZSTD_freeCCtx(context);
  const std::string response =
      ask(head("POST /api/v1/echo", length(1000) + "Content-Encoding: zstd\r\n") + open_frame);
  EXPECT_EQ(status(response), "503");
  EXPECT_EQ(options.accounts.of(Use::kBody).used(), 0);
}

TEST_F(HttpServerTest, APeerThatReadsSlowlyGetsALongAnswerWhole) {
  Client client(server->port());
  client.send(head("GET /api/v1/long", "Connection: close\r\n"));
  const double begin = now_seconds();
  EXPECT_GT(client.read_slowly(), kLong);
  EXPECT_GT(now_seconds() - begin, 2 * options.body_timeout);
}

TEST_F(HttpServerTest, RefusesWhatIsNotHttp) {
  EXPECT_EQ(status(ask("\x16\x03\x01garbage garbage\r\n\r\n")), "400");
  EXPECT_EQ(status(ask(head("GET /%zz"))), "400");
  EXPECT_EQ(status(ask(head("GET /a%00b"))), "400");
}

TEST_F(HttpServerTest, ParksManyPolls) {
  constexpr int kPolls = 300;
  std::vector<std::unique_ptr<Client>> clients;
  for (int i = 0; i < kPolls; ++i) {
    clients.push_back(std::make_unique<Client>(server->port()));
    clients.back()->send(head("POST /api/v1/park", length(2)) + "{}");
  }
  const double end = now_seconds() + 5;
  while (body(ask(head("GET /api/v1/parked"))) != std::to_string(kPolls) && now_seconds() < end) {
  }
  clients[7].reset();  // a peer that goes away while it waits harms nobody
  std::thread([this] {
    for (const Respond& respond : parked) respond(json_response(200, "done"));
  }).join();
  clients.erase(clients.begin() + 7);
  for (size_t i = 0; i < clients.size(); ++i) {
    EXPECT_EQ(body(clients[i]->read()), "done");
  }
}

TEST_F(HttpServerTest, StopFinishesRunningExchanges) {
  Client client(server->port());
  client.send(head("POST /api/v1/park", length(2)) + "{}");
  while (body(ask(head("GET /api/v1/parked"))) != "1") {
  }
  std::thread stopper([this] { server->stop(5.0); });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  parked[0](json_response(200, "late"));
  EXPECT_EQ(body(client.read()), "late");
  stopper.join();
}

}  // namespace
}  // namespace strata::server
