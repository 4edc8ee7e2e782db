// SPDX-License-Identifier: Apache-2.0
// GET usage: what the tenant's keys have used and may use; for a key of the operator's everybody's.
#pragma once
#include "server/tinker/operations/operation.h"

namespace strata::server {

extern const Operation kUsage;

}  // namespace strata::server
