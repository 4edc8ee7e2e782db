#include "server/http/tls.h"

#include <fmt/format.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>

#include <boost/asio/ssl/context.hpp>
#include <boost/asio/ssl/error.hpp>

#include "base/error.h"
#include "base/log.h"
#include "server/http/response_head.h"

namespace strata::server {
namespace {

namespace ssl = boost::asio::ssl;
using boost::system::error_code;

[[noreturn]] void refuse(const char* option, const std::string& file, const error_code& fault,
                         const std::string& wanted) {
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("{} {}: {}; wanted {}", option, file, fault.message(), wanted));
}

void warn_of_dates(const ssl::context& context, const std::string& file) {
  const X509* certificate =
      SSL_CTX_get0_certificate(const_cast<ssl::context&>(context).native_handle());
  if (certificate == nullptr) return;
  if (X509_cmp_current_time(X509_get0_notAfter(certificate)) < 0) {
    log(LogLevel::kWarning, fmt::format("--tls-cert {}: the certificate has expired", file));
  } else if (X509_cmp_current_time(X509_get0_notBefore(certificate)) > 0) {
    log(LogLevel::kWarning, fmt::format("--tls-cert {}: the certificate is not valid yet", file));
  }
}

}  // namespace

TlsContext load_tls(const TlsFiles& files) {
  auto context = std::make_shared<ssl::context>(ssl::context::tls_server);
  error_code fault;
  context->set_options(ssl::context::default_workarounds | ssl::context::no_sslv2 |
                           ssl::context::no_sslv3 | ssl::context::no_tlsv1 |
                           ssl::context::no_tlsv1_1 | SSL_OP_NO_RENEGOTIATION |
                           SSL_OP_CIPHER_SERVER_PREFERENCE,
                       fault);
  // Else OpenSSL would ask for a passphrase at the terminal.
  context->set_password_callback([](size_t, auto) { return std::string(); }, fault);
  context->use_certificate_chain_file(files.certificate, fault);
  if (fault) refuse("--tls-cert", files.certificate, fault, "certificates in PEM");
  context->use_private_key_file(files.key, ssl::context::pem, fault);
  if (fault) {
    refuse("--tls-key", files.key, fault,
           "the private key of " + files.certificate + " in PEM, without a passphrase");
  }
  warn_of_dates(*context, files.certificate);
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
