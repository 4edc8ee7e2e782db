// SPDX-License-Identifier: Apache-2.0
// POST create_model: {session_id, model_seq_id, base_model, lora_config, user_metadata}: a fresh
// adapter that trains. Its number is the client's: sent again, it is the same model.
#pragma once
#include "server/tinker/operations/operation.h"

namespace strata::server {

extern const Operation kCreateModel;

}  // namespace strata::server
