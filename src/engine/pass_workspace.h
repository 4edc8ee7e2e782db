// SPDX-License-Identifier: Apache-2.0
// PassWorkspace: what the passes of one engine that run one after the other share: the backend with
// its scratch, tables of positions, and the meter that counts a pass before it is booked. Passes
// that break in on others (base/threads.h) need a workspace of their own. Engine thread only.
#pragma once
#include <memory>
#include <utility>

#include "engine/plan/pass_plan.h"
#include "model/pass/rope_table.h"

namespace strata::engine {

class PassWorkspace {
 public:
  PassWorkspace(std::unique_ptr<Backend> backend, const model::ModelConfig& config)
      : backend_(std::move(backend)), ropes_(*backend_, config.ropes), meter_(*backend_) {}
  // Whose passes break in on those of `other`.
  PassWorkspace(PassWorkspace& other, const model::ModelConfig& config)
      : PassWorkspace(other.backend_->sharing(), config) {}

  [[nodiscard]] Backend& backend() { return *backend_; }
  [[nodiscard]] const Backend& backend() const { return *backend_; }
  [[nodiscard]] model::RopeTables& ropes() { return ropes_; }
  // Of the pass that was counted last.
  [[nodiscard]] const PassPlan& last_plan() const { return meter_.plan(); }
  // What a pass takes (borrowed until the next call), and space for it on backend(), but in files.
  const PassPlan& count(FunctionRef<void(Backend&)> pass) { return meter_.count(pass); }
  const PassPlan& count_held(FunctionRef<int64_t(Backend&)> pass) {
    return meter_.count_held(pass);
  }
  void book(const PassPlan& plan) { backend_->book(plan.bytes, plan.worker_bytes); }

 private:
  std::unique_ptr<Backend> backend_;
  model::RopeTables ropes_;
  PassMeter meter_;
};

}  // namespace strata::engine
