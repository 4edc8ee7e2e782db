#include "engine/pass_plan.h"

namespace strata::engine {

const PassPlan& PassMeter::count(FunctionRef<void(Backend&)> pass) {
  counter_.scratch().reserve(0);
  for (int i = 0; i < counter_.num_lanes(); ++i) counter_.lane(i).scratch().reserve(0);
  pass(counter_);
  plan_.bytes = counter_.scratch().high_water();
  plan_.num_lanes = counter_.num_lanes();
  plan_.lane_bytes = plan_.num_lanes == 0 ? 0 : counter_.lane(0).scratch().high_water();
  const std::span<const Scratch::Use> uses = counter_.scratch().peak_uses();
  plan_.uses.assign(uses.begin(), uses.end());
  return plan_;
}

void book(const PassPlan& plan, Backend& backend, int64_t most) {
  backend.scratch().reserve(plan.bytes, most);
  if (plan.lane_bytes == 0) return;
  backend.make_lanes();
  for (int i = 0; i < backend.num_lanes(); ++i) {
    backend.lane(i).scratch().reserve(plan.lane_bytes, most);
  }
}

}  // namespace strata::engine
