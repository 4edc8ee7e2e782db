// SPDX-License-Identifier: Apache-2.0
// InFlight: how much of what connections may take the requests of each tenant hold that are being
// answered, whatever addresses they come from: one tenant that takes all it can get leaves the
// others some. What is answered at once, a sign of life, has a limit of its own. Any thread.
#pragma once
#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>

#include "base/shared_limit.h"
#include "server/http/places.h"
#include "server/http/server.h"

namespace strata::server {

// What a request counts as while it is answered, besides its body.
struct Counted {
  std::optional<ProxiedRequest> of_client;
  SharedLimit::Share in_flight;
};

class InFlight {
 public:
  explicit InFlight(const HttpOptions& options)
      : InFlight(options, connection_bytes(!options.tls.empty())) {}

  // How many the keys name.
  void set_num_tenants(int64_t count) {
    bytes_.set_num_tenants(count);
    signs_.set_num_tenants(count);
  }

  // As long as `share` lives the request counts with what its connection takes; or its refusal,
  // which clients repeat later.
  std::optional<Response> take(const Request& request, int64_t bytes, SharedLimit::Share& share) {
    const bool is_upkeep = request.route != nullptr && request.route->effect == Effect::kUpkeep;
    if (request.tenant.empty()) return std::nullopt;
    // Polls leave some for what they wait for.
    share = is_upkeep && !request.route->watches_peer
                ? signs_.take(request.tenant, bytes)
                : bytes_.take(request.tenant, bytes, is_upkeep ? bytes_.limit() / kLeftByPolls : 0);
    if (share) return std::nullopt;
    return busy_response(429,
                         "as many requests of this tenant are being answered as may be at once "
                         "(--max-connection-bytes); send it again when some have been");
  }

 private:
  InFlight(const HttpOptions& options, int64_t of_one)
      : bytes_(std::min(options.connections.limit(), options.max_connections * of_one), of_one),
        signs_(bytes_.limit() / kForSigns, of_one) {}

  static constexpr int64_t kLeftByPolls = 16;
  static constexpr int64_t kForSigns = 4;
  SharedLimit bytes_, signs_;
};

}  // namespace strata::server
