// SPDX-License-Identifier: Apache-2.0
// OpenSSL's own client of HttpServer, and certificates that are made on the spot.
#pragma once
#include <gtest/gtest.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rsa.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <sys/time.h>

#include <memory>
#include <string>

#include "server/http/tls.h"
#include "tests/server/http/client.h"

namespace strata::server {

// A self-signed certificate for localhost and its key, in `dir`.
inline TlsFiles make_files(const std::string& dir, const std::string& name,
                           bool with_passphrase = false, bool is_rsa = false) {
  const std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)> key(
      is_rsa ? EVP_RSA_gen(2048) : EVP_EC_gen("P-256"), &EVP_PKEY_free);
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
  explicit TlsClient(int port, int max_version = TLS1_3_VERSION, const char* ciphers = nullptr,
                     const char* groups = nullptr)
      : context_(SSL_CTX_new(TLS_client_method())), socket_(::socket(AF_INET, SOCK_STREAM, 0)) {
    SSL_CTX_set_security_level(context_, 0);  // TLS 1.1 is to fail at the server, not here
    SSL_CTX_set_min_proto_version(context_, TLS1_VERSION);
    SSL_CTX_set_max_proto_version(context_, max_version);
    if (ciphers != nullptr) {
      EXPECT_EQ(SSL_CTX_set_cipher_list(context_, ciphers), 1);
    }
    if (groups != nullptr) {
      EXPECT_EQ(SSL_CTX_set1_groups_list(context_, groups), 1);
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
  // Of TLS 1.3: `count` new keys, each in a record of its own. Whether all went out.
  [[nodiscard]] bool change_keys(int count) const {
    for (int i = 0; i < count; ++i) {
      if (SSL_key_update(ssl_, SSL_KEY_UPDATE_NOT_REQUESTED) != 1 || SSL_do_handshake(ssl_) != 1)
        return false;
    }
    return true;
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
  // What arrives next, or nothing at the end.
  [[nodiscard]] std::string receive() {
    char chunk[16384];
    const int count = SSL_read(ssl_, chunk, sizeof chunk);
    return count <= 0 ? std::string() : std::string(chunk, static_cast<size_t>(count));
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

}  // namespace strata::server
