// SPDX-License-Identifier: Apache-2.0
// POST unload_model: {model_id}: its memory goes, once what was accepted of it has run.
#pragma once
#include "server/tinker/operations/operation.h"

namespace strata::server {

extern const Operation kUnloadModel;

}  // namespace strata::server
