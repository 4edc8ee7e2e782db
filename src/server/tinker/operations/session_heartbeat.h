// SPDX-License-Identifier: Apache-2.0
// POST session_heartbeat: {session_id}: a sign of life. 410 when it has ended.
#pragma once
#include "server/tinker/operations/operation.h"

namespace strata::server {

extern const Operation kSessionHeartbeat;

}  // namespace strata::server
