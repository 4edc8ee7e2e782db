// SPDX-License-Identifier: Apache-2.0
// GET healthz: the process answers. GET readyz: new work may be sent here, else 503 with why not.
// Both without a key, so they name no path and no tenant.
#pragma once
#include "server/tinker/operations/operation.h"

namespace strata::server {

extern const Operation kHealth;
extern const Operation kReady;

}  // namespace strata::server
