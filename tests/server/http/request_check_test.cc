// SPDX-License-Identifier: Apache-2.0
// Where a request ends, over real sockets: framings that a proxy could read in another way are
// refused, and nothing behind them is run; lines without an end are cut.
#include "server/http/request_check.h"

#include <gtest/gtest.h>

#include <atomic>

#include "server/http/server.h"
#include "tests/server/http/client.h"
#include "text/unicode/unicode.h"

namespace strata::server {
namespace {

TEST(AddressRules, AHostMayLeaveOutThePortThatItsSchemeHas) {
  const AddressRules rules("0.0.0.0", 8000, "https://Box.example:443/strata");
  EXPECT_TRUE(rules.is_own_host("box.example"));
  EXPECT_TRUE(rules.is_own_host("box.example:443"));
  EXPECT_FALSE(rules.is_own_host("box.example:8443"));
  EXPECT_FALSE(rules.is_own_host("other.example"));
  EXPECT_TRUE(AddressRules("0.0.0.0", 8000, "http://box.example:80").is_own_host("box.example"));
  EXPECT_FALSE(AddressRules("0.0.0.0", 8000, "http://box.example:443").is_own_host("box.example"));
  EXPECT_FALSE(
      AddressRules("0.0.0.0", 8000, "https://box.example:8443").is_own_host("box.example"));
}

TEST(AddressRules, APublicUrlWithoutAPortIsOfAnyPort) {
  for (const std::string host : {"box.example", "[2001:db8::1]"}) {
    const AddressRules rules("0.0.0.0", 8000, "https://" + host);
    EXPECT_TRUE(rules.is_own_host(host));
    EXPECT_TRUE(rules.is_own_host(host + ":8443"));
  }
  EXPECT_FALSE(AddressRules("0.0.0.0", 8000, "").is_own_host("box.example"));
}

struct FramingTest : ::testing::Test {
  FramingTest() {
    Router router;
    router.add({"GET", "/api/v1/healthz", BodyKind::kNone,
                at_once([](const Request&) { return json_response(200, "{}"); }), false});
    router.add({"GET", "/api/v1/usage", BodyKind::kNone,
                at_once([](const Request&) { return json_response(200, "{}"); })});
    router.add({"POST", "/api/v1/echo", BodyKind::kJson, at_once([this](const Request& request) {
                  ++num_run;
                  return json_response(200, request.body);
                })});
    server = std::make_unique<HttpServer>(
        HttpOptions{}, std::move(router), [](std::string_view key) -> std::optional<Caller> {
          return key == "tml-good" ? std::optional<Caller>(Caller{"t1"}) : std::nullopt;
        });
    server->start();
  }
  [[nodiscard]] static std::string head(const std::string& fields,
                                        const std::string& version = "1.1") {
    return "POST /api/v1/echo HTTP/" + version +
           "\r\nHost: localhost\r\nContent-Type: application/json\r\n"
           "X-API-Key: tml-good\r\n" +
           fields + "\r\n";
  }
  // The answer to `request`, behind which another one stands; that one must not have been run.
  std::string answer_alone(const std::string& request) {
    const int before = num_run;
    Client client(server->port());
    client.send(request + head("Content-Length: 2\r\n") + "[]");
    const std::string answer = client.read(2);
    EXPECT_EQ(client.read(0.1), "") << request;
    EXPECT_EQ(num_run, before) << request;
    return answer.empty() ? "closed" : status(answer);
  }

  std::atomic<int> num_run = 0;
  std::unique_ptr<HttpServer> server;
};

TEST_F(FramingTest, ATransferEncodingThatIsNotChunkedAloneEndsTheConnection) {
  for (const char* fields :
       {"Transfer-Encoding: xchunked\r\n", "Transfer-Encoding: identity\r\n",
        "Transfer-Encoding: gzip\r\n", "Transfer-Encoding: chunked, identity\r\n",
        "Transfer-Encoding: \"chunked\"\r\n", "Transfer-Encoding: gzip, chunked\r\n",
        "Transfer-Encoding: chunked;q=1\r\n", "Transfer-Encoding: chunked, chunked\r\n",
        "Transfer-Encoding:\r\n", "Transfer-Encoding: ,chunked\r\n",
        "Transfer-Encoding: xchunked\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding: xchunked\r\nContent-Length: 2\r\n",
        "Content-Length: 2\r\nTransfer-Encoding: xchunked\r\n",
        "Transfer-Encoding: chunked\r\nContent-Length: 2\r\n",
        "Content-Length: 2\r\nTransfer-Encoding: chunked\r\n", "Transfer-Encoding : chunked\r\n",
        "Transfer-Encoding\t: chunked\r\n",
        "Transfer-Encoding: \x0b"
        "chunked\r\n"}) {
    EXPECT_EQ(answer_alone(head(fields)), "400") << fields;
  }
  EXPECT_EQ(answer_alone(head("Transfer-Encoding: chunked\r\n", "1.0")), "400");
  EXPECT_EQ(num_run, 0);
}

// Whoever puts refusals in a form of its own hears of the path, also where it cannot be read.
TEST(RequestCheck, RefusalsKnowTheirPath) {
  HttpOptions options;
  options.put_in_form = [](std::string_view path, Response& refusal) {
    refusal.body = "refused: " + std::string(path);
  };
  HttpServer server(options, Router(), nullptr);
  server.start();
  const auto ask = [&](const std::string& target, const std::string& fields) {
    Client client(server.port());
    client.send("GET " + target + " HTTP/1.1\r\nHost: localhost\r\n" + fields + "\r\n");
    return client.read();
  };
  const std::string two = "X-API-Key: a\r\nX-API-Key: b\r\n";
  EXPECT_NE(ask("/v1/models", two).find("refused: /v1/models"), std::string::npos);
  EXPECT_NE(ask("http://localhost/v1/x?y", two).find("refused: /v1/x"), std::string::npos);
  EXPECT_NE(ask("/v1/models/%zz", "").find("refused: /v1/models/"), std::string::npos);
  EXPECT_NE(ask("/v1/a", "X: " + std::string(70000, 'x') + "\r\n").find("refused: /v1/a"),
            std::string::npos);
}

TEST_F(FramingTest, ChunkedAloneIsRead) {
  for (const char* value : {"chunked", "Chunked", "CHUNKED", " chunked \t"}) {
    Client client(server->port());
    client.send(head(std::string("Transfer-Encoding:") + value + "\r\n") +
                "1;a=b\r\n[\r\n1\r\n]\r\n0\r\nX-Trailer: 1\r\n\r\n" +
                head("Content-Length: 2\r\n") + "{}");
    EXPECT_EQ(body(client.read()), "[]") << value;
    EXPECT_EQ(body(client.read()), "{}") << value;
  }
}

TEST_F(FramingTest, TwoHostsOrKeysAreRefused) {
  EXPECT_EQ(answer_alone(head("Host: localhost\r\n")), "400");
  EXPECT_EQ(answer_alone(head("X-API-Key: tml-bad\r\n")), "400");
  const std::string bearer = "Authorization: Bearer tml-good\r\n";
  EXPECT_EQ(answer_alone(head(bearer + bearer)), "400");
  EXPECT_EQ(answer_alone(head("Content-Type: text/plain\r\n")), "400");
}

TEST_F(FramingTest, OneLengthIsANumberThatStandsThereOnce) {
  for (const char* fields :
       {"Content-Length: 2\r\nContent-Length: 2\r\n", "Content-Length: 2, 2\r\n",
        "Content-Length: 2\r\nContent-Length: 3\r\n", "Content-Length: +2\r\n",
        "Content-Length: -2\r\n", "Content-Length: 0x2\r\n", "Content-Length:\r\n",
        "Content-Length: 2 0\r\n", "Content-Length: 99999999999999999999\r\n",
        "Content-Length : 2\r\n",
        "Content-Length: \x0b"
        "2\r\n"}) {
    EXPECT_EQ(answer_alone(head(fields)), "400") << fields;
  }
}

// Who does not unfold it reads another field than who does.
TEST_F(FramingTest, FoldedFieldsAreRefused) {
  for (const char* fields :
       {"Transfer-Encoding:\r\n chunked\r\n", "X: a\r\n b\r\nContent-Length: 2\r\n",
        "X: a\r\n\tTransfer-Encoding: chunked\r\n", "X: a\r\n \r\nContent-Length: 2\r\n"}) {
    EXPECT_EQ(answer_alone(head(fields)), "400") << fields;
  }
  EXPECT_EQ(answer_alone("POST /api/v1/echo HTTP/1.1\r\n Host: localhost\r\nHost: localhost\r\n"
                         "X-API-Key: tml-good\r\n\r\n"),
            "400");
}

TEST_F(FramingTest, FoldedTrailersAreRefused) {
  for (const char* trailers : {"X: a\r\n b\r\n", "X: a\r\n\tTransfer-Encoding: chunked\r\n",
                               "X: a\r\n \r\nY: b\r\n", " X: a\r\n", "X:\r\n a\r\n"}) {
    for (const char* chunks : {"2\r\n[]\r\n0\r\n", "0;a=b\r\n"}) {
      EXPECT_EQ(answer_alone(head("Transfer-Encoding: chunked\r\n") + chunks + trailers + "\r\n"),
                "400")
          << trailers;
    }
  }
  // What the body holds is no trailer.
  Client client(server->port());
  client.send(head("Transfer-Encoding: chunked\r\n") +
              "5\r\n[\r\n 1\r\n1\r\n]\r\n0\r\nX: 1\r\n\r\n");
  EXPECT_EQ(body(client.read()), "[\r\n 1]");
}

TEST_F(FramingTest, LinesEndPlainlyAndChunksAreWhatTheySay) {
  for (const char* start :
       {"X: a\nContent-Length: 2\r\n\r\n[]", "X: a\rContent-Length: 2\r\n\r\n[]",
        "X\r\nContent-Length: 2\r\n\r\n[]", ": a\r\nContent-Length: 2\r\n\r\n[]",
        "X: \x01\r\nContent-Length: 2\r\n\r\n[]"}) {
    const std::string head_alone = head("");
    EXPECT_EQ(answer_alone(head_alone.substr(0, head_alone.size() - 2) + start), "400") << start;
  }
  for (const char* body :
       {"0x2\r\n[]\r\n0\r\n\r\n", "+2\r\n[]\r\n0\r\n\r\n", "2 \r\n[]\r\n0\r\n\r\n",
        " 2\r\n[]\r\n0\r\n\r\n", "2\n[]\r\n0\r\n\r\n", "2\r\n[]\n0\r\n\r\n", "2\r\n[]0\r\n\r\n",
        "1\r\n[]\r\n0\r\n\r\n", "2\r\n[]\r\n0\n\n", "10000000000000002\r\n[]\r\n0\r\n\r\n",
        "2;;=\r\n[]\r\n0\r\n\r\n", "2;a\x01\r\n[]\r\n0\r\n\r\n", "2;a=\"\nx\"\r\n[]\r\n0\r\n\r\n",
        "2;a=\"\x01\"\r\n[]\r\n0\r\n\r\n", "2;a=\"\x7f\"\r\n[]\r\n0\r\n\r\n",
        "2;a=\"\r\n\"\r\n[]\r\n0\r\n\r\n", "2\r\n[]\r\n0;a=\"\n\"\r\n\r\n",
        "2\r\n[]\r\n0\r\nGET / HTTP/1.1\r\n\r\n"}) {
    EXPECT_EQ(answer_alone(head("Transfer-Encoding: chunked\r\n") + body), "400") << body;
  }
}

TEST_F(FramingTest, MoreFieldsThanAnybodySendsAreRefused) {
  const auto fields = [](int count) {
    std::string out;
    for (int i = 0; i < count; ++i) out += "a:\r\n";
    return out;
  };
  constexpr int kOfHead = 4;  // with Content-Length
  Client client(server->port());
  for (int i = 0; i < 3; ++i) {  // together they are more
    client.send(head("Content-Length: 2\r\n" + fields(100 - kOfHead)) + "[]");
    EXPECT_EQ(status(client.read()), "200");
  }
  EXPECT_EQ(answer_alone(head("Content-Length: 2\r\n" + fields(101 - kOfHead)) + "[]"), "431");
  EXPECT_EQ(answer_alone(head(fields(3000))), "431");
}

TEST_F(FramingTest, AnAbsoluteTargetIsAsGoodAsItsPath) {
  const auto get = [&](const std::string& target, const std::string& host) {
    Client client(server->port());
    client.send("GET " + target + " HTTP/1.1\r\nHost: " + host + "\r\n\r\n");
    return status(client.read(5));
  };
  EXPECT_EQ(get("http://localhost/api/v1/healthz", "localhost"), "200");
  EXPECT_EQ(get("http://127.0.0.1:1/api/v1/healthz?a=http://x/", "evil.example"), "200");
  EXPECT_EQ(get("HTTP://localhost/api/v1/healthz", "localhost"), "200");
  EXPECT_EQ(get("http://evil.example/api/v1/healthz", "localhost"), "421");
  EXPECT_EQ(get("http://localhost@evil.example/api/v1/healthz", "localhost"), "400");
  EXPECT_EQ(get("ftp://localhost/api/v1/healthz", "localhost"), "400");
}

// Names of a request stand in the answer, and the answer is JSON.
TEST_F(FramingTest, AnAnswerIsValidWhateverItQuotes) {
  Client client(server->port());
  client.send("GET / HTTP/1.1\r\nHost: \xff\xfe.example\r\n\r\n");
  const std::string answer = client.read(5);
  EXPECT_EQ(status(answer), "400");
  EXPECT_TRUE(text::is_valid_utf8(body(answer))) << answer;
}

// Of what never ends, no more than a few KiB are read, with or without a key.
TEST_F(FramingTest, ALineOfChunkedEncodingHasAnEnd) {
  const std::string endless(1 << 20, 'a');
  for (const std::string& start :
       {std::string("5;"), std::string("0\r\na: "), std::string("5;a=\"")}) {
    Client client(server->port());
    client.send(head("Transfer-Encoding: chunked\r\n") + start);
    client.send(endless);
    const std::string answer = client.read(5);
    ASSERT_GT(answer.size(), 12U) << start;
    EXPECT_EQ(status(answer), "400") << start;
    EXPECT_NE(answer.find("8 KiB"), std::string::npos) << answer;
  }
  std::string trailers = "0\r\n";
  while (trailers.size() < 1 << 20) trailers += "a: b\r\n";
  Client client(server->port());
  client.send(head("Transfer-Encoding: chunked\r\n") + trailers);
  EXPECT_EQ(status(client.read(5)), "400");
}

TEST_F(FramingTest, ARouteThatReadsNoBodyRefusesOneByItsHead) {
  Client client(server->port());
  client.send(
      "GET /api/v1/healthz HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n");
  EXPECT_EQ(status(client.read(5)), "413");
  // Nor one with a key.
  const std::string with_key =
      "GET /api/v1/usage HTTP/1.1\r\nHost: localhost\r\nX-API-Key: tml-good\r\n";
  EXPECT_EQ(answer_alone(with_key + "Content-Length: 5\r\n\r\n12345"), "413");
  EXPECT_EQ(answer_alone(with_key + "Transfer-Encoding: chunked\r\n\r\n2\r\n[]\r\n0\r\n\r\n"),
            "413");
}

}  // namespace
}  // namespace strata::server
