// SPDX-License-Identifier: Apache-2.0
// POST create_session: {tags, user_metadata, display_name, project_id, sdk_version}, all optional.
// A session that a client keeps alive with heartbeats. X-Idempotency-Key: sent again, it is the
// same.
#pragma once
#include "server/tinker/operations/operation.h"

namespace strata::server {

extern const Operation kCreateSession;

}  // namespace strata::server
