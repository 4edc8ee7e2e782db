// SPDX-License-Identifier: Apache-2.0
// X-Idempotency-Key of a request: sent again, it means the same request.
#pragma once
#include "server/http/message.h"
#include "server/store/state/store.h"

namespace strata::server {

// Of a long key its hash, so that no two are one.
Idempotency idempotency_of(const Request& request);

}  // namespace strata::server
