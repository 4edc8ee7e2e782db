#include "apps/plan.h"

#include "base/error.h"

namespace strata::apps {

int run_plan(const PlanOptions& options) {
  if (options.schedule.schedule.empty()) {
    throw Error(ErrorCode::kInvalidArgument, "plan: want --schedule NAME|FILE.csv");
  }
  return plan_schedule(options.schedule);
}

}  // namespace strata::apps
