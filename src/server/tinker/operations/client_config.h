// SPDX-License-Identifier: Apache-2.0
// What an SDK asks when it starts. POST client/config: how it should talk to this server. POST
// client/dynamic_config: the same, of what may change. POST telemetry: taken, and not read.
#pragma once
#include "server/tinker/operations/operation.h"

namespace strata::server {

extern const Operation kClientConfig;
extern const Operation kDynamicConfig;
extern const Operation kTelemetry;

}  // namespace strata::server
