// SPDX-License-Identifier: Apache-2.0
// Lowering: a table of computation gets the sends and receives that it needs, as PyTorch's runtime
// places them: a send behind what it sends, its receive at the same time at the end of what the
// receiver has run by then. Sends and receives of two ranks are therefore in the same order.
#pragma once
#include "schedule/action.h"

namespace strata::schedule {

// `table` holds computation only and has been verified. Stages on one rank need no transfer. With a
// forwarding delay of 2 an output is sent behind the next action, where that goes the same way.
Table lower(const Table& table, int forwarding_delay = 1);

// The computation alone.
Table without_transfers(Table table);

}  // namespace strata::schedule
