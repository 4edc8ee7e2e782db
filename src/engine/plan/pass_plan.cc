#include "engine/plan/pass_plan.h"

namespace strata::engine {

const PassPlan& PassMeter::count(FunctionRef<void(Backend&)> pass) {
  counter_.reset_count();
  pass(counter_);
  plan_.bytes = counter_.scratch().high_water();
  plan_.num_lanes = counter_.num_lanes();
  plan_.lane_bytes = counter_.lane_high_water();
  plan_.flops = counter_.counted_flops();
  const std::span<const Scratch::Use> uses = counter_.scratch().peak_uses();
  plan_.uses.assign(uses.begin(), uses.end());
  return plan_;
}

void book(const PassPlan& plan, Backend& backend, int64_t most) {
  backend.book(plan.bytes, plan.lane_bytes, most);
}

}  // namespace strata::engine
