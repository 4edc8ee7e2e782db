// SPDX-License-Identifier: Apache-2.0
// How a request says where it ends (RFC 9112, section 6). Who reads that in another way than a
// proxy before this server takes a part of one request for the next one (request smuggling), so
// whatever is not plainly one thing is refused and the connection closed.
#pragma once
#include <optional>
#include <string_view>
#include <vector>

#include "server/http/message.h"

namespace strata::server {

struct Framing {
  unsigned version = 11;    // 10 * major + minor
  bool is_chunked = false;  // as the parser understands it
};

// The refusal, or nothing. Names of headers in lower case.
std::optional<Response> check_framing(const Framing& framing, const std::vector<Header>& headers);

// Of a target in absolute form ("http://host/path", RFC 9112, 3.2.2): takes scheme and authority
// off it, and the authority takes the place of the Host header.
void take_authority(std::string_view& target, std::vector<Header>& headers);

}  // namespace strata::server
