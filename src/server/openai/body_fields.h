// SPDX-License-Identifier: Apache-2.0
// The fields of the bodies that OpenAI's clients send, one row each: which form has it.
#pragma once
#include "server/protocol/json_body.h"

namespace strata::server {

// Refuses, by name, every field that is not null and has no row for chats or for completions.
void check_fields(const Fields& body, bool is_chat);

}  // namespace strata::server
