// SPDX-License-Identifier: Apache-2.0
// Runs a table's queues without computing, to see whether they come to an end.
#pragma once
#include <optional>

#include "schedule/action.h"
#include "schedule/fault.h"

namespace strata::schedule {

// A table with its numbers in range. What stands when no rank can go on is a deadlock: the lowest
// such rank, and what it waits for.
[[nodiscard]] std::optional<Fault> find_deadlock(const Table& table);

}  // namespace strata::schedule
