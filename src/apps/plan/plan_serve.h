// SPDX-License-Identifier: Apache-2.0
// strata plan serve: what a server's memory holds.
#pragma once
#include "apps/plan/plan.h"

namespace strata::apps {

int run_plan_serving(const PlanOptions& options);

}  // namespace strata::apps
