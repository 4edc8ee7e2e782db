// SPDX-License-Identifier: Apache-2.0
// What a command takes while it waits, and a datum in a pass.
#pragma once
#include <cstdint>

#include "api/work.h"

namespace strata::scheduler {

// Bytes of a command until it is answered, nearly.
int64_t queued_bytes(const api::Command& command);
// Tokens of one datum in a pass.
int64_t datum_tokens(const api::Datum& datum);

}  // namespace strata::scheduler
