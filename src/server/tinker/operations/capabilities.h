// SPDX-License-Identifier: Apache-2.0
// GET get_server_capabilities: the base models and adapters that are served, and how long their
// sequences may be.
#pragma once
#include "server/tinker/operations/operation.h"

namespace strata::server {

extern const Operation kCapabilities;

}  // namespace strata::server
