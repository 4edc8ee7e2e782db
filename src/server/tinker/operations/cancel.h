// SPDX-License-Identifier: Apache-2.0
// POST cancel_future: {request_id}: a sample of one's own leaves at once, with its rows and pages.
// POST requests/{}/cancel: anybody's, for a key of the operator's. What trains was accepted with a
// number that others wait for, and runs.
#pragma once
#include "server/tinker/operations/operation.h"

namespace strata::server {

extern const Operation kCancelFuture;
extern const Operation kCancelRequest;

}  // namespace strata::server
