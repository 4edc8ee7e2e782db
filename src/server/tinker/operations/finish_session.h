// SPDX-License-Identifier: Apache-2.0
// POST sessions/{}/finish: {reason: {type}, detail}: ends a session, with its unsaved models and
// its samplers; of one that has ended, how it did. 403 for a key that could not have made what
// ends.
#pragma once
#include "server/tinker/operations/operation.h"

namespace strata::server {

extern const Operation kFinishSession;

}  // namespace strata::server
