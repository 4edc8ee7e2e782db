// SPDX-License-Identifier: Apache-2.0
// POST get_info: {model_id}: what a model is.
#pragma once
#include "server/tinker/operations/operation.h"

namespace strata::server {

extern const Operation kGetInfo;

}  // namespace strata::server
