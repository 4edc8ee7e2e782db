// SPDX-License-Identifier: Apache-2.0
// Endpoints that clients know from other servers: /health, which this server has where vLLM has it,
// and those that it lacks, which it refuses by name and says what to ask for instead.
#pragma once
#include "server/http/router.h"
#include "server/tinker/service/service.h"

namespace strata::server {

// `service` outlives the router.
void add_endpoints_of_others(Router& router, const Service& service);

}  // namespace strata::server
