// SPDX-License-Identifier: Apache-2.0
// The checks that come before a request is routed: Host and Origin (a browser page of another site,
// or a name rebound to this address, must not reach the API), the prefix of --public-url, and the
// base of absolute links.
#pragma once
#include <optional>
#include <string>
#include <string_view>

namespace strata::server {

class AddressRules {
 public:
  // `public_url` like "https://box.example/strata", or empty.
  AddressRules(std::string listen_host, int port, const std::string& public_url,
               bool is_secured = false);

  // Whether a Host header names this server: a loopback name, the listen address or --public-url.
  [[nodiscard]] bool knows_host(std::string_view host) const;
  // An Origin header, when there is one, must be this host's.
  [[nodiscard]] static bool origin_fits(std::string_view origin, std::string_view host);
  // What absolute links start with.
  [[nodiscard]] std::string base_url(std::string_view host) const;
  // The path without the prefix of --public-url, if it has that prefix.
  [[nodiscard]] std::string_view without_prefix(std::string_view path) const;

 private:
  std::string listen_host_;
  int port_;
  bool is_secured_;
  std::string public_url_;
  std::string public_authority_;
  std::string public_path_;
};

// %2e becomes '.'; null for a malformed escape or a control character.
std::optional<std::string> decode_path(std::string_view path);

}  // namespace strata::server
