// SPDX-License-Identifier: Apache-2.0
// The fields of the bodies that OpenAI's clients send, one row each: which form has it, and, where
// it changes no answer, what is wanted of it all the same.
#pragma once
#include "text/json_body.h"

namespace strata::server {

// Refuses, by name, every field that is not null and has no row for chats or for completions, and
// values of the wrong kind in fields that change nothing.
void check_fields(const text::Fields& body, bool is_chat);

}  // namespace strata::server
