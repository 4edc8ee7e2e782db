// SPDX-License-Identifier: Apache-2.0
// X-Idempotency-Key of a request: sent again, it means the same request.
#pragma once
#include "server/http/message.h"
#include "server/store/state/store.h"

namespace strata::server {

// The request's idempotency key; a long key as its hash, so that no two become one.
Idempotency idempotency_of(const Request& request);

}  // namespace strata::server
