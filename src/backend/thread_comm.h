// SPDX-License-Identifier: Apache-2.0
// Ranks as threads of one process: run_ranks() starts them, each with a Comm of its own, and waits
// for all. Messages are copied into buffers of the channel, which it uses again, so that a warm
// step allocates nothing.
#pragma once
#include "backend/comm.h"
#include "base/function_ref.h"

namespace strata {

// Calls body once for every rank, each in a thread of its own ("rank 0", ... in a timeline); a rank
// that is alone is the caller's thread. Where one throws, the others are stopped at their next
// receive, and that first exception is thrown here.
void run_ranks(int num_ranks, FunctionRef<void(Comm& comm)> body);

}  // namespace strata
