// SPDX-License-Identifier: Apache-2.0
// PassPlan: what a pass takes from the scratch, counted by running the pass's own code on a backend
// that computes nothing (Backend::counter). So what is planned is what is taken, to the byte and
// by tag. Engine thread only.
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "backend/backend.h"
#include "base/function_ref.h"
#include "model/pass/pass.h"

namespace strata::engine {

struct PassPlan {
  int64_t bytes = 0;         // of the scratch
  int64_t worker_bytes = 0;  // of the scratch of each worker
  int64_t num_workers = 0;
  double flops = 0.0;              // of forward products, those that are recomputed among them
  int64_t file_bytes = 0;          // of what is offloaded, which is no memory
  std::vector<Scratch::Use> uses;  // of the scratch at its fullest, by tag
  std::vector<Scratch::Use> file_uses;
  // Of a pass whose forward and backward are apart: what it holds between them, besides the
  // scratch, which serves other passes meanwhile.
  int64_t held_bytes = 0;
  std::vector<Scratch::Use> held_uses;
  // Between its backward and its weight gradients.
  int64_t deferred_bytes = 0;
  // What backward needs, kept or recomputed, and what recomputing it costs; of plan_pass() alone.
  std::vector<model::SavedCost> saved;
  [[nodiscard]] int64_t total() const { return bytes + worker_bytes * num_workers; }
  // Besides the scratch.
  [[nodiscard]] int64_t kept() const { return held_bytes + deferred_bytes; }
};

class PassMeter {
 public:
  // Counts what this backend would take.
  explicit PassMeter(Backend& backend) : counter_(backend.counter()) {}

  // Runs the pass on the counting backend. Borrowed until the next call, which allocates nothing
  // once it is warm.
  const PassPlan& count(FunctionRef<void(Backend&)> pass);
  // The same of a pass that holds something between its forward and its backward (Scratch::Hold),
  // and returns what it defers.
  const PassPlan& count_held(FunctionRef<int64_t(Backend&)> pass);
  [[nodiscard]] const PassPlan& plan() const { return plan_; }

 private:
  std::unique_ptr<Backend> counter_;
  Scratch held_ = Scratch::counting(Scratch::Counted::kHeld);
  PassPlan plan_;
};

}  // namespace strata::engine
