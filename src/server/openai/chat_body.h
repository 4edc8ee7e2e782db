// SPDX-License-Identifier: Apache-2.0
// The body of a chat completion as a sample: messages and tools through the model's own template,
// and how its answer is to be read. Faults are Errors that name the field.
#pragma once
#include <cstdint>

#include "api/work.h"
#include "server/openai/answer_order.h"
#include "server/openai/sampling_fields.h"
#include "server/openai/served_text.h"
#include "text/json_body.h"

namespace strata::server {

AnswerOrder read_chat(const text::Fields& body, const ServedText& text, const api::BaseInfo& base,
                      uint64_t fallback_seed, const TakeMemory& take = {});

// The conversation as ChatTemplate::render wants it: messages as text/conversation.h reads them,
// with the prompt of an answer. Exposed for tests, and for strata data.
text::ChatRequest read_conversation(const text::Fields& body, const ServedText& text);

}  // namespace strata::server
