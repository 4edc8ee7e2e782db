// SPDX-License-Identifier: Apache-2.0
// `strata plan train --ranks`: a plan of ranks that are processes, what they send, and on a cluster
// when. Any thread.
#pragma once
#include "apps/plan/plan.h"

namespace strata::apps {

// Prints what each rank takes and sends; the exit code.
int print_ranks_plan(const PlanOptions& options);

}  // namespace strata::apps
