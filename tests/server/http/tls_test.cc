// SPDX-License-Identifier: Apache-2.0
// HttpServer through TLS, with OpenSSL's own client and certificates made on the spot.
#include "server/http/tls.h"

#include <gtest/gtest.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rsa.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <sys/stat.h>
#include <sys/time.h>

#include <filesystem>

#include "base/error.h"
#include "server/http/rules.h"
#include "server/http/server.h"
#include "tests/server/http/client.h"

namespace strata::server {
namespace {

constexpr size_t kLong = 3 << 20;

using Key = std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)>;

// A self-signed certificate for localhost and its key, in `dir`.
TlsFiles make_files(const std::string& dir, const std::string& name, bool with_passphrase = false,
                    bool is_rsa = false) {
  const Key key(is_rsa ? EVP_RSA_gen(2048) : EVP_EC_gen("P-256"), &EVP_PKEY_free);
  const std::unique_ptr<X509, decltype(&X509_free)> certificate(X509_new(), &X509_free);
  X509_set_version(certificate.get(), 2);
  ASN1_INTEGER_set(X509_get_serialNumber(certificate.get()), 1);
  X509_gmtime_adj(X509_getm_notBefore(certificate.get()), -60);
  X509_gmtime_adj(X509_getm_notAfter(certificate.get()), 3600);
  X509_set_pubkey(certificate.get(), key.get());
  X509_NAME* subject = X509_get_subject_name(certificate.get());
  X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_ASC,
                             reinterpret_cast<const unsigned char*>(name.c_str()), -1, -1, 0);
  X509_set_issuer_name(certificate.get(), subject);
  EXPECT_GT(X509_sign(certificate.get(), key.get(), EVP_sha256()), 0);
  const TlsFiles files = {dir + "/" + name + ".pem", dir + "/" + name + ".key"};
  FILE* out = std::fopen(files.certificate.c_str(), "w");
  PEM_write_X509(out, certificate.get());
  std::fclose(out);
  out = std::fopen(files.key.c_str(), "w");
  std::string passphrase = "secret";
  PEM_write_PrivateKey(out, key.get(), with_passphrase ? EVP_aes_128_cbc() : nullptr, nullptr, 0,
                       nullptr, with_passphrase ? passphrase.data() : nullptr);
  std::fclose(out);
  return files;
}

class TlsClient {
 public:
  explicit TlsClient(int port, int max_version = TLS1_3_VERSION, const char* ciphers = nullptr)
      : context_(SSL_CTX_new(TLS_client_method())), socket_(::socket(AF_INET, SOCK_STREAM, 0)) {
    SSL_CTX_set_security_level(context_, 0);  // TLS 1.1 is to fail at the server, not here
    SSL_CTX_set_min_proto_version(context_, TLS1_VERSION);
    SSL_CTX_set_max_proto_version(context_, max_version);
    if (ciphers != nullptr) {
      EXPECT_EQ(SSL_CTX_set_cipher_list(context_, ciphers), 1);
    }
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(::connect(socket_, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    const timeval limit = {.tv_sec = 10, .tv_usec = 0};
    ::setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    ssl_ = SSL_new(context_);
    SSL_set_fd(ssl_, socket_);
    is_open_ = SSL_connect(ssl_) == 1;
  }
  ~TlsClient() {
    SSL_free(ssl_);
    SSL_CTX_free(context_);
    ::close(socket_);
  }
  TlsClient(const TlsClient&) = delete;
  TlsClient& operator=(const TlsClient&) = delete;

  [[nodiscard]] bool is_open() const { return is_open_; }
  [[nodiscard]] std::string version() const { return SSL_get_version(ssl_); }
  // The name in the server's certificate.
  [[nodiscard]] std::string name() const {
    X509* certificate = SSL_get1_peer_certificate(ssl_);
    if (certificate == nullptr) return {};
    char text[64] = {};
    X509_NAME_get_text_by_NID(X509_get_subject_name(certificate), NID_commonName, text,
                              sizeof text);
    X509_free(certificate);
    return text;
  }
  void send(std::string_view text) const {
    EXPECT_EQ(SSL_write(ssl_, text.data(), static_cast<int>(text.size())),
              static_cast<int>(text.size()));
  }
  // A whole response.
  [[nodiscard]] std::string read() {
    for (;;) {
      if (auto whole = take_response(rest_)) return *whole;
      char chunk[16384];
      const int count = SSL_read(ssl_, chunk, sizeof chunk);
      if (count <= 0) return rest_;
      rest_.append(chunk, static_cast<size_t>(count));
    }
  }
  // Whether the end is the server's word and not a cut.
  [[nodiscard]] bool ends_well() const {
    char byte = 0;
    const int count = SSL_read(ssl_, &byte, 1);
    return count <= 0 && SSL_get_error(ssl_, count) == SSL_ERROR_ZERO_RETURN;
  }

 private:
  SSL_CTX* context_;
  int socket_;
  SSL* ssl_ = nullptr;
  bool is_open_ = false;
  std::string rest_;
};

struct TlsTest : testing::Test {
  TlsTest() : dir(testing::TempDir() + "/strata_tls_" + std::to_string(::getpid())) {
    std::filesystem::create_directories(dir);
    files = make_files(dir, "first");
    options.tls = files;
    options.header_timeout = 0.5;
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

  void reload() const { server->use_tls(load_tls(files)); }

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
  EXPECT_THROW(load_tls({rsa.certificate, files.key}), Error);
  EXPECT_THROW(load_tls({files.certificate, rsa.key}), Error);
  EXPECT_NO_THROW(load_tls(rsa));
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
  server->use_tls(load_tls(rsa));
  EXPECT_FALSE(TlsClient(server->port(), TLS1_2_VERSION, "AES128-SHA").is_open());
  EXPECT_FALSE(TlsClient(server->port(), TLS1_2_VERSION, "AES128-GCM-SHA256").is_open());
  EXPECT_TRUE(TlsClient(server->port(), TLS1_2_VERSION, "ECDHE-RSA-AES128-GCM-SHA256").is_open());
}

TEST_F(TlsTest, APipeInPlaceOfAFileIsNotWaitedFor) {
  const std::string pipe = dir + "/pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_THROW(load_tls({pipe, files.key}), Error);
  EXPECT_THROW(load_tls({files.certificate, pipe}), Error);
}

TEST_F(TlsTest, FilesThatCannotBeUsedAreNamed) {
  const auto fault = [](const TlsFiles& broken) -> std::string {
    try {
      load_tls(broken);
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
