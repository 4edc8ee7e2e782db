// SPDX-License-Identifier: Apache-2.0
// What a command takes while it waits, and what a row takes when it runs.
#pragma once
#include <cstdint>

#include "api/work.h"

namespace strata::scheduler {

// Bytes of a command until it is answered, nearly.
int64_t queued_bytes(const api::Command& command);
// Tokens of one datum in a pass.
int64_t datum_tokens(const api::Datum& datum);
// KV pages that a request holds from its first row to its last.
int64_t prompt_pages(const api::Sample& sample, int64_t page_size);
// KV pages that sample `row` needs at most; rows after the first share the prompt's full pages.
int64_t sample_pages(const api::Sample& sample, int64_t row, int64_t page_size);

}  // namespace strata::scheduler
