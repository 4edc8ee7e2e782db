// SPDX-License-Identifier: Apache-2.0
#include "server/http/tls.h"

#include <fmt/format.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <sys/stat.h>

#include <boost/asio/buffer.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/ssl/error.hpp>

#include "base/check.h"
#include "base/error.h"
#include "base/files.h"
#include "base/log.h"
#include "server/http/message.h"

namespace strata::server {
namespace {

namespace ssl = boost::asio::ssl;
using boost::system::error_code;

constexpr int64_t kMaxPem = 1 << 20;
// The client chooses among these, and with ffdhe8192 a hello would cost 120 ms (CVE-2022-40735).
constexpr const char* kGroups = "X25519:P-256:P-384";
// Changes of a connection's keys: they come after 2^24 records, and each costs its reader 8 us.
constexpr intptr_t kMostControls = 32;
constexpr int kMostRounds = 100;  // of a handshake; a long chain takes some twenty

std::string read_pem(const char* option, const std::string& file) {
  try {
    return read_file(file, kMaxPem);
  } catch (const Error& error) {
    throw Error(error.code, fmt::format("{} {}", option, error.what()));
  }
}

// A reason that OpenSSL gives, and none is left for the next one who asks.
std::string take_openssl_reason() {
  const unsigned long code = ERR_peek_last_error();
  const char* text = code == 0 ? nullptr : ERR_reason_error_string(code);
  ERR_clear_error();
  return text == nullptr ? "no reason given" : text;
}

int controls_index() {
  static const int index = SSL_get_ex_new_index(0, nullptr, nullptr, nullptr, nullptr);
  return index;
}

// Counts what TLS says other than data: changes of keys, alerts (each refused renegotiation is
// one). Of too many the connection reads no more, as if its peer had ended it.
void limit_control_messages(int /*written*/, int /*version*/, int type, const void* bytes,
                            size_t size, SSL* ssl, void* /*unused*/) {
  const bool is_key_update = type == SSL3_RT_HANDSHAKE && size > 0 &&
                             *static_cast<const unsigned char*>(bytes) == SSL3_MT_KEY_UPDATE;
  if (!is_key_update && type != SSL3_RT_ALERT) return;
  const auto count = reinterpret_cast<intptr_t>(SSL_get_ex_data(ssl, controls_index())) + 1;
  SSL_set_ex_data(ssl, controls_index(), reinterpret_cast<void*>(count));
  if (count > kMostControls) SSL_set_shutdown(ssl, SSL_RECEIVED_SHUTDOWN);
}

// A handshake with a client that accepts anybody, in memory; what fails here fails for everyone.
bool handshake_succeeds(SSL_CTX* server) {
  using Context = std::unique_ptr<SSL_CTX, decltype(&SSL_CTX_free)>;
  using Session = std::unique_ptr<SSL, decltype(&SSL_free)>;
  const Context client(SSL_CTX_new(TLS_client_method()), &SSL_CTX_free);
  const Session ours(SSL_new(server), &SSL_free);
  const Session theirs(SSL_new(client.get()), &SSL_free);
  BIO *here = nullptr, *there = nullptr;
  if (!ours || !theirs || BIO_new_bio_pair(&here, 0, &there, 0) != 1) return false;
  SSL_set_bio(ours.get(), here, here);
  SSL_set_bio(theirs.get(), there, there);
  SSL_set_accept_state(ours.get());
  SSL_set_connect_state(theirs.get());
  const auto is_done = [](SSL* ssl) { return SSL_is_init_finished(ssl) == 1; };
  for (int i = 0; i < kMostRounds && !(is_done(ours.get()) && is_done(theirs.get())); ++i) {
    for (SSL* ssl : {theirs.get(), ours.get()}) {
      const int done = SSL_do_handshake(ssl);
      if (done != 1 && SSL_get_error(ssl, done) != SSL_ERROR_WANT_READ) return false;
    }
  }
  return is_done(ours.get()) && is_done(theirs.get());
}

// OpenSSL keeps a key for each algorithm, so it takes a certificate and another kind of key, and
// then serves nobody.
void check_certificate_and_key(ssl::context& context, const TlsFiles& files) {
  ERR_clear_error();
  SSL_CTX* const native = context.native_handle();
  if (SSL_CTX_check_private_key(native) != 1) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("--tls-key {}: {}; wanted the private key of {}, and both from one "
                            "renewal",
                            files.key, take_openssl_reason(), files.certificate));
  }
  if (!handshake_succeeds(native)) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("--tls-cert {}, --tls-key {}: no handshake succeeds with them: {}",
                            files.certificate, files.key, take_openssl_reason()));
  }
}

void warn_of_open_modes(const std::string& file) {
  struct stat info;
  if (::stat(file.c_str(), &info) != 0 || (info.st_mode & 0177) == 0) return;
  log(LogLevel::kWarning, fmt::format("--tls-key {}: mode {:04o} lets others read it; chmod 600",
                                      file, static_cast<unsigned>(info.st_mode & 07777)));
}

[[noreturn]] void refuse_tls_file(const char* option, const std::string& file,
                                  const error_code& fault, const std::string& wanted) {
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("{} {}: {}; wanted {}", option, file, fault.message(), wanted));
}

void warn_of_certificate_dates(const ssl::context& context, const std::string& file) {
  const X509* certificate =
      SSL_CTX_get0_certificate(const_cast<ssl::context&>(context).native_handle());
  if (certificate == nullptr) return;
  if (X509_cmp_current_time(X509_get0_notAfter(certificate)) < 0) {
    log(LogLevel::kWarning, fmt::format("--tls-cert {}: the certificate has expired", file));
  } else if (X509_cmp_current_time(X509_get0_notBefore(certificate)) > 0) {
    log(LogLevel::kWarning, fmt::format("--tls-cert {}: the certificate is not valid yet", file));
  }
}

// Versions, ciphers, groups and tickets: all but the certificate and the key.
void configure_protocol(ssl::context& context) {
  SSL_CTX* const native = context.native_handle();
  error_code ignored;
  context.set_options(ssl::context::default_workarounds | ssl::context::no_sslv2 |
                          ssl::context::no_sslv3 | ssl::context::no_tlsv1 |
                          ssl::context::no_tlsv1_1 | SSL_OP_NO_RENEGOTIATION |
                          SSL_OP_CIPHER_SERVER_PREFERENCE | SSL_OP_NO_TICKET,
                      ignored);
  // What was recorded stays secret when the key is lost: every session has keys of its own (in TLS
  // 1.3 always), and no ticket's key outlives one.
  SSL_CTX_set_num_tickets(native, 0);
  SSL_CTX_set_session_cache_mode(native, SSL_SESS_CACHE_OFF);
  CHECK(SSL_CTX_set_cipher_list(native, "ECDHE+AESGCM:ECDHE+CHACHA20:!aNULL") == 1);
  CHECK(SSL_CTX_set1_groups_list(native, kGroups) == 1);
  SSL_CTX_set_msg_callback(native, limit_control_messages);
  // Else OpenSSL would ask for a passphrase at the terminal.
  context.set_password_callback([](size_t, auto) { return std::string(); }, ignored);
}

void load_certificate_and_key(ssl::context& context, const TlsFiles& files) {
  error_code fault;
  const std::string certificate = read_pem("--tls-cert", files.certificate);
  const std::string key = read_pem("--tls-key", files.key);
  context.use_certificate_chain(boost::asio::buffer(certificate), fault);
  if (fault) refuse_tls_file("--tls-cert", files.certificate, fault, "certificates in PEM");
  context.use_private_key(boost::asio::buffer(key), ssl::context::pem, fault);
  if (fault) {
    refuse_tls_file("--tls-key", files.key, fault,
                    "the private key of " + files.certificate + " in PEM, without a passphrase");
  }
}

}  // namespace

TlsContext load_tls_context(const TlsFiles& files) {
  auto context = std::make_shared<ssl::context>(ssl::context::tls_server);
  configure_protocol(*context);
  load_certificate_and_key(*context, files);
  check_certificate_and_key(*context, files);
  warn_of_open_modes(files.key);
  warn_of_certificate_dates(*context, files.certificate);
  return context;
}

bool is_plain_http(const error_code& fault) {
  return fault.category() == boost::asio::error::get_ssl_category() &&
         ERR_GET_REASON(static_cast<unsigned long>(fault.value())) == SSL_R_HTTP_REQUEST;
}

std::string plain_http_text() {
  return closing_text(error_response(400, "this address speaks TLS: use https://"));
}

}  // namespace strata::server
