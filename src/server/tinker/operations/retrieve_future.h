// SPDX-License-Identifier: Apache-2.0
// POST retrieve_future: {request_id}: what became of a request, at once or when it is known; 408
// when that takes longer than a poll is held (service/futures.h).
#pragma once
#include "server/tinker/operations/operation.h"

namespace strata::server {

extern const Operation kRetrieveFuture;

}  // namespace strata::server
