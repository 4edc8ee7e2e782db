// `strata plan`: what a run will take, before it runs.
#pragma once
#include "apps/plan_schedule.h"

namespace strata::apps {

struct PlanOptions {
  PlanScheduleOptions schedule;
};

int run_plan(const PlanOptions& options);

}  // namespace strata::apps
