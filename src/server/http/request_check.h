// SPDX-License-Identifier: Apache-2.0
// What is decided of a request from its header alone, in the order in which it must be: framing,
// host and origin (a browser page of another site, or a name rebound to this address, must not
// reach the API), path, key and what it may do, and then what the body may be.
//
// How a request says where it ends (RFC 9112, section 6): who reads that in another way than a
// proxy before this server takes a part of one request for the next one (request smuggling), so
// whatever is not plainly one thing is refused and the connection closed.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "server/http/read_request.h"
#include "server/http/router.h"
#include "server/http/server.h"

namespace strata::server {

// Names of this server: hosts, the prefix of --public-url, and the base of absolute links.
class AddressRules {
 public:
  // `public_url` like "https://box.example/strata", or empty.
  AddressRules(std::string listen_host, int port, const std::string& public_url,
               bool is_secured = false);

  // Whether a Host header names this server: a loopback name, the listen address or --public-url.
  [[nodiscard]] bool is_own_host(std::string_view host) const;
  // An Origin header, when there is one, must be this host's.
  [[nodiscard]] static bool origin_matches_host(std::string_view origin, std::string_view host);
  // What absolute links start with.
  [[nodiscard]] std::string base_url(std::string_view host) const;
  // The path without the prefix of --public-url, if it has that prefix.
  [[nodiscard]] std::string_view without_prefix(std::string_view path) const;

 private:
  std::string listen_host_;
  int port_;
  bool is_secured_;
  std::string public_url_;
  std::string public_host_, public_port_;  // no port: any
  bool is_default_port_ = false;           // of its scheme, which clients leave out
  std::string public_path_;
};

// %2e becomes '.'; null for a malformed escape or a control character.
std::optional<std::string> decode_path(std::string_view path);

// A request's path as far as it is spelled plainly: refusals of what cannot be read have its form.
std::string plain_path(const AddressRules& rules, std::string_view target);
std::string_view target_of(const BodyParser& parser);

struct RequestCheck {
  const HttpOptions& options;
  const Router& router;
  const AddressRules& rules;
  const Identify& identify;
  const Admit& admit;
};

// How long the body of a request of this route (null: of none) may be, before and after
// decompression, and the option that says so.
struct BodyLimit {
  uint64_t bytes = 0;
  std::string_view option;
  bool may_be_put_off = false;  // data and samples: without space for it 429, else 503
};
BodyLimit body_limit(const HttpOptions& options, const Route* route);

// The refusal, or nothing; fills what `request` has of the header, and what the key says. The
// parser is behind the header.
std::optional<Response> validate_header(const RequestCheck& with, const BodyParser& parser,
                                        Request& request);

// What stays to be told of a request when it is gone.
Exchange exchange_of(const Request& request);

// While it is answered a request counts with what its connection takes, whatever address that comes
// from: a tenant that takes all it can get leaves the others some. What is answered at once, a sign
// of life, has a limit of its own, and polls leave some for what they wait for.
std::optional<Response> admit_in_flight(const Request& request, int64_t bytes);

}  // namespace strata::server
