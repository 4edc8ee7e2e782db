// SPDX-License-Identifier: Apache-2.0
// HttpServer through TLS, with OpenSSL's own client and certificates made on the spot.
#include "server/http/tls.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <csignal>
#include <filesystem>

#include "base/error.h"
#include "server/http/request_check.h"
#include "server/http/server.h"
#include "tests/server/http/client.h"
#include "tests/server/http/tls_client.h"

namespace strata::server {
namespace {

constexpr size_t kLong = 3 << 20;

struct TlsTest : ::testing::Test {
  TlsTest() : dir(testing::TempDir() + "/strata_tls_" + std::to_string(::getpid())) {
    std::filesystem::create_directories(dir);
    files = make_files(dir, "first");
    options.tls = files;
    options.header_timeout = 0.5;
    options.max_small_body = 1 << 20;
    Router router;
    router.add({"GET", "/api/v1/where", BodyKind::kNone, at_once([](const Request& request) {
                  return json_response(200, request.base_url);
                }),
                false});
    router.add({"GET", "/api/v1/long", BodyKind::kNone,
                at_once([](const Request&) { return json_response(200, std::string(kLong, 'x')); }),
                false});
    router.add({"POST", "/api/v1/echo", BodyKind::kJson, at_once([](const Request& request) {
                  return json_response(200, std::string(request.body));
                })});
    server = std::make_unique<HttpServer>(options, std::move(router), [](std::string_view key) {
      return key == "tml-good" ? std::optional<Caller>(Caller{"t1", false}) : std::nullopt;
    });
    server->start();
  }
  ~TlsTest() override { std::filesystem::remove_all(dir); }

  [[nodiscard]] std::string head(const std::string& line, const std::string& more = {}) const {
    return line + " HTTP/1.1\r\nHost: localhost:" + std::to_string(server->port()) +
           "\r\nX-API-Key: tml-good\r\nContent-Type: application/json\r\n" + more + "\r\n";
  }

  void reload() const { server->use_tls(load_tls_context(files)); }

  std::string dir;
  TlsFiles files;
  HttpOptions options;
  std::unique_ptr<HttpServer> server;
};

TEST_F(TlsTest, CarriesRequestsAndLongBodies) {
  for (const int version : {TLS1_2_VERSION, TLS1_3_VERSION}) {
    TlsClient client(server->port(), version);
    ASSERT_TRUE(client.is_open());
    EXPECT_EQ(client.version(), version == TLS1_2_VERSION ? "TLSv1.2" : "TLSv1.3");
    client.send(head("GET /api/v1/where"));
    EXPECT_EQ(body(client.read()), "https://localhost:" + std::to_string(server->port()));
    const std::string long_body = "\"" + std::string(300'000, 'y') + "\"";
    client.send(
        head("POST /api/v1/echo", "Content-Length: " + std::to_string(long_body.size()) + "\r\n") +
        long_body);
    EXPECT_TRUE(body(client.read()) == long_body);
    client.send(head("GET /api/v1/long", "Connection: close\r\n"));
    const std::string whole = client.read();
    EXPECT_EQ(body(whole).size(), kLong);
    EXPECT_EQ(body(whole).find_first_not_of('x'), std::string::npos);
    EXPECT_TRUE(client.ends_well());
  }
}

TEST_F(TlsTest, RefusesInItsOwnTongue) {
  TlsClient client(server->port());
  ASSERT_TRUE(client.is_open());
  client.send(head("POST /api/v1/echo", "Content-Length: 99999999999\r\n"));
  EXPECT_EQ(status(client.read()), "413");
}

TEST_F(TlsTest, TellsThoseWhoSpeakPlainHttp) {
  Client client(server->port());
  client.send(head("GET /api/v1/where"));
  const std::string answer = client.read();
  EXPECT_EQ(status(answer), "400");
  EXPECT_NE(body(answer).find("https://"), std::string::npos);
  EXPECT_TRUE(client.closes(5));
}

TEST_F(TlsTest, ClosesOnHandshakesThatAreNone) {
  EXPECT_FALSE(TlsClient(server->port(), TLS1_1_VERSION).is_open());
  Client silent(server->port());
  EXPECT_TRUE(silent.closes(5));
  Client half(server->port());
  half.send(std::string("\x16\x03\x01\x02\x00\x01\x00", 7));
  EXPECT_TRUE(half.closes(5));
  Client other(server->port());
  other.send(std::string(100'000, '\xff'));
  other.read(5);
  TlsClient good(server->port());
  EXPECT_TRUE(good.is_open());
}

// CVE-2022-40735: the server's answer to such a hello costs it 120 ms, and its maker nothing.
TEST_F(TlsTest, TakesNoGroupsThatCostItMuch) {
  EXPECT_FALSE(TlsClient(server->port(), TLS1_3_VERSION, nullptr, "ffdhe8192").is_open());
  EXPECT_FALSE(TlsClient(server->port(), TLS1_3_VERSION, nullptr, "ffdhe2048:P-521").is_open());
  for (const char* const groups : {"X25519", "P-256", "P-384"})
    EXPECT_TRUE(TlsClient(server->port(), TLS1_3_VERSION, nullptr, groups).is_open());
}

TEST_F(TlsTest, KeysThatChangeAllTheTimeEndTheConnection) {
  ::signal(SIGPIPE, SIG_IGN);
  TlsClient honest(server->port());
  ASSERT_TRUE(honest.change_keys(20));
  honest.send(head("GET /api/v1/where"));
  EXPECT_EQ(status(honest.read()), "200");

  TlsClient client(server->port());
  static_cast<void>(client.change_keys(1000));
  client.send(head("GET /api/v1/where"));
  EXPECT_EQ(client.receive(), "");
}

TEST_F(TlsTest, ANewCertificateIsForNewConnections) {
  TlsClient before(server->port());
  EXPECT_EQ(before.name(), "first");
  const TlsFiles second = make_files(dir, "second");
  std::filesystem::copy_file(second.certificate, files.certificate,
                             std::filesystem::copy_options::overwrite_existing);
  // Half of a change: the key is the old one's.
  EXPECT_THROW(reload(), Error);
  EXPECT_EQ(TlsClient(server->port()).name(), "first");
  std::filesystem::copy_file(second.key, files.key,
                             std::filesystem::copy_options::overwrite_existing);
  reload();
  EXPECT_EQ(TlsClient(server->port()).name(), "second");
  before.send(head("GET /api/v1/where"));
  EXPECT_EQ(status(before.read()), "200");
}

// OpenSSL takes both of them; certbot's renewals change the algorithm.
TEST_F(TlsTest, ACertificateAndAnotherKindOfKeyAreRefused) {
  const TlsFiles rsa = make_files(dir, "rsa", /*with_passphrase=*/false, /*is_rsa=*/true);
  EXPECT_THROW(load_tls_context({rsa.certificate, files.key}), Error);
  EXPECT_THROW(load_tls_context({files.certificate, rsa.key}), Error);
  EXPECT_NO_THROW(load_tls_context(rsa));
  std::filesystem::copy_file(rsa.certificate, files.certificate,
                             std::filesystem::copy_options::overwrite_existing);
  EXPECT_THROW(reload(), Error);
  TlsClient client(server->port());
  EXPECT_TRUE(client.is_open());
  EXPECT_EQ(client.name(), "first");
}

// What is recorded today stays secret when the key is lost tomorrow.
TEST_F(TlsTest, EverySessionHasAKeyOfItsOwn) {
  const TlsFiles rsa = make_files(dir, "rsa", /*with_passphrase=*/false, /*is_rsa=*/true);
  server->use_tls(load_tls_context(rsa));
  EXPECT_FALSE(TlsClient(server->port(), TLS1_2_VERSION, "AES128-SHA").is_open());
  EXPECT_FALSE(TlsClient(server->port(), TLS1_2_VERSION, "AES128-GCM-SHA256").is_open());
  EXPECT_TRUE(TlsClient(server->port(), TLS1_2_VERSION, "ECDHE-RSA-AES128-GCM-SHA256").is_open());
}

TEST_F(TlsTest, APipeInPlaceOfAFileIsNotWaitedFor) {
  const std::string pipe = dir + "/pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_THROW(load_tls_context({pipe, files.key}), Error);
  EXPECT_THROW(load_tls_context({files.certificate, pipe}), Error);
}

TEST_F(TlsTest, FilesThatCannotBeUsedAreNamed) {
  const auto fault = [](const TlsFiles& broken) -> std::string {
    try {
      load_tls_context(broken);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_NE(fault({dir + "/none.pem", files.key}).find("--tls-cert " + dir + "/none.pem"),
            std::string::npos);
  EXPECT_NE(fault({files.key, files.key}).find("--tls-cert " + files.key), std::string::npos);
  EXPECT_NE(fault({files.certificate, files.certificate}).find("--tls-key"), std::string::npos);
  const TlsFiles other = make_files(dir, "other");
  EXPECT_NE(fault({files.certificate, other.key}).find("--tls-key " + other.key),
            std::string::npos);
  const TlsFiles locked = make_files(dir, "locked", /*with_passphrase=*/true);
  EXPECT_NE(fault(locked).find("without a passphrase"), std::string::npos);
}

}  // namespace
}  // namespace strata::server
