// SPDX-License-Identifier: Apache-2.0
#include "engine/plan/pass_plan.h"

namespace strata::engine {

const PassPlan& PassMeter::count(FunctionRef<void(Backend&)> pass) {
  counter_->reset_count();
  pass(*counter_);
  plan_.bytes = counter_->scratch().high_water();
  plan_.num_workers = counter_->num_workers();
  plan_.worker_bytes = counter_->worker_high_water();
  plan_.flops = counter_->counted_flops();
  plan_.file_bytes = counter_->file_scratch().high_water();
  const auto copy = [](const Scratch& from, std::vector<Scratch::Use>& to) {
    to.assign(from.peak_uses().begin(), from.peak_uses().end());
  };
  copy(counter_->scratch(), plan_.uses);
  copy(counter_->file_scratch(), plan_.file_uses);
  plan_.held_bytes = held_.high_water();
  copy(held_, plan_.held_uses);
  held_.reserve(0);
  plan_.deferred_bytes = 0;
  return plan_;
}

const PassPlan& PassMeter::count_held(FunctionRef<int64_t(Backend&)> pass) {
  int64_t deferred_bytes = 0;
  count([&](Backend& counter) {
    const Scratch::Mark mark(held_);
    const Scratch::Hold hold(counter.scratch(), held_);
    deferred_bytes = pass(counter);
  });
  plan_.deferred_bytes = deferred_bytes;
  return plan_;
}

}  // namespace strata::engine
