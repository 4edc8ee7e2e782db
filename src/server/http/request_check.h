// SPDX-License-Identifier: Apache-2.0
// What is decided of a request from its header alone, in the order in which it must be: host and
// origin, path, key and what it may do, and then what the body may be.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "server/http/router.h"
#include "server/http/rules.h"
#include "server/http/server.h"

namespace strata::server {

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
  bool may_be_put_off = false;  // passes and samples: without space for it 429, else 503
};
BodyLimit body_limit(const HttpOptions& options, const Route* route);

// What a header says of the body behind it.
struct AnnouncedBody {
  uint64_t length = 0;
  bool is_chunked = false;  // then its length is not known
};

// The refusal, or nothing; fills path, route, base_url and what the key says. The method and the
// headers of `request` are there; `raw_path` is the target without its query.
std::optional<Response> check_request(const RequestCheck& with, std::string_view raw_path,
                                      AnnouncedBody body, Request& request);

// What stays to be told of a request when it is gone.
Exchange told_of(const Request& request);

}  // namespace strata::server
