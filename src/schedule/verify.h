// SPDX-License-Identifier: Apache-2.0
// The verifier: does a table compute every micro-batch's step, and does it come to an end? Rules
// are read along each rank's queue and through transfers; the first fault is named. A table without
// transfers is held to what it computes; one with any must have all that it needs. A send never
// waits; a receive waits for its send, and channels deliver in order.
#pragma once
#include <optional>

#include "schedule/action.h"
#include "schedule/fault.h"

namespace strata::schedule {

// Nothing where `table`, whatever it holds, is a schedule.
[[nodiscard]] std::optional<Fault> verify(const Table& table);

}  // namespace strata::schedule
