// SPDX-License-Identifier: Apache-2.0
// A sweep: several learning rates (--lr 1e-4,3e-4,1e-3) in one go, each with an adapter of its own
// on one model that is loaded once, step by step in turn. --out holds lr-1e-4/ and so on, each with
// the bytes that a run of that rate alone writes; with them a table, sweep.md, and sweep.svg.
#pragma once
#include "trainer/start.h"

namespace strata::apps {

// The exit code, as run_train's.
int run_sweep(const RunStart& start);

}  // namespace strata::apps
