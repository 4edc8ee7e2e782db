// What is decided of a request from its header alone, in the order in which it must be: host and
// origin, path, key, and then what the body may be.
#pragma once
#include <cstdint>
#include <optional>
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
};

// The refusal, or nothing; fills path, base_url, tenant and is_admin. The method and the headers of
// `request` are there; `raw_path` is the target without its query.
std::optional<Response> check_request(const RequestCheck& with, std::string_view raw_path,
                                      std::optional<uint64_t> length, Request& request);

}  // namespace strata::server
