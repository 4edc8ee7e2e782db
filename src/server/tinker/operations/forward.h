// SPDX-License-Identifier: Apache-2.0
// POST forward: the losses of data under forward_input, as JSON, without a gradient.
#pragma once
#include "server/tinker/operations/operation.h"

namespace strata::server {

extern const Operation kForward;

}  // namespace strata::server
