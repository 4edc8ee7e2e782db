// SPDX-License-Identifier: Apache-2.0
// POST forward_backward: gradients of a loss added to a model's, a ForwardBackwardRequest
// (tinker.proto) or JSON (protocol/json_data.h).
#pragma once
#include "server/tinker/operations/operation.h"

namespace strata::server {

extern const Operation kForwardBackward;

}  // namespace strata::server
