// SPDX-License-Identifier: Apache-2.0
// strata plan train --search: the divisions of a model among the ranks of a cluster with which a
// step takes the least time, and the command line that runs the best.
#pragma once
#include "apps/plan/plan.h"
#include "setup/division_search.h"

namespace strata::apps {

// Error for options that do not go with a search.
void check_can_search(const PlanOptions& options);
// Searches, with progress on stderr, and prints what was found.
int print_found_divisions(const PlanOptions& options, const DivisionSearch& search,
                          DivisionSearch::ShapeOf shape_of);

}  // namespace strata::apps
