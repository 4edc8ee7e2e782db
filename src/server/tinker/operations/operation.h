// SPDX-License-Identifier: Apache-2.0
// Operation: a call of the Tinker protocol, behind /api/v1/. Each stands in a file of its own with
// how it is read and what completes it (a Completion, service/futures.h).
#pragma once
#include "server/http/endpoint.h"
#include "server/tinker/service/service.h"

namespace strata::server {

using Operation = Endpoint<Service>;

}  // namespace strata::server
