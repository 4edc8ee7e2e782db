// SPDX-License-Identifier: Apache-2.0
// TlsContext: the certificate and the key that connections are served with (TLS 1.2 and 1.3). Made
// anew when the files change; connections keep the one they began with.
#pragma once
#include <memory>
#include <string>

namespace boost::asio::ssl {
class context;
}
namespace boost::system {
class error_code;
}

namespace strata::server {

// PEM files: a certificate, followed by those of its issuers, and its key without a passphrase.
struct TlsFiles {
  std::string certificate;
  std::string key;
  [[nodiscard]] bool empty() const { return certificate.empty(); }
};

using TlsContext = std::shared_ptr<boost::asio::ssl::context>;

// Throws Error, with the option's name and the file, when one cannot be read, they do not belong
// together, or no handshake succeeds with them. Logs a warning when the certificate is not valid
// today, or others may read the key.
TlsContext load_tls_context(const TlsFiles& files);

// Whether a handshake failed because the peer sent HTTP in the clear; and what to answer then.
bool is_plain_http(const boost::system::error_code& fault);
std::string plain_http_text();

}  // namespace strata::server
