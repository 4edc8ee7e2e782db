// SPDX-License-Identifier: Apache-2.0
// The body of a completion: one sample for each of its prompts. Faults are Errors that name the
// field.
#pragma once
#include <cstdint>

#include "api/work.h"
#include "server/openai/answer_order.h"
#include "server/openai/sampling_fields.h"
#include "server/openai/served_text.h"
#include "text/json_body.h"

namespace strata::server {

AnswerOrder read_completion(const text::Fields& body, const ServedText& text,
                            const api::BaseInfo& base, uint64_t fallback_seed,
                            const TakeMemory& take = {});

}  // namespace strata::server
