// SPDX-License-Identifier: Apache-2.0
#include "engine/plan/run_plan.h"

#include <algorithm>

#include "base/check.h"

namespace strata::engine {

int64_t RunPlan::bytes_of(std::string_view item) const {
  const auto found = std::ranges::find(memory.items, item, &PlanItem::name);
  CHECK(found != memory.items.end(), item);
  return found->bytes;
}

double step_seconds(const RunPlan& plan, const MachineLimits& limits) {
  double busiest = 0.0;
  for (const Work& work : plan.work) busiest = std::max(busiest, seconds_of(work, limits));
  return busiest * static_cast<double>(plan.work.size()) / (1.0 - plan.bubbles);
}

}  // namespace strata::engine
