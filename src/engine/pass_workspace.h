// SPDX-License-Identifier: Apache-2.0
// PassWorkspace: what the passes of one engine that run one after the other share: the backend with
// its scratch, tables of positions, and the meter that counts a pass before it is booked. Passes
// that break in on others (base/threads.h) need a workspace of their own. Engine thread only.
#pragma once
#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "backend/backend.h"
#include "base/function_ref.h"
#include "model/pass/pass.h"
#include "model/pass/rope_table.h"

namespace strata::engine {

// PassPlan: what a pass takes from the scratch, counted by running the pass's own code on a backend
// that computes nothing (Backend::counter). So what is planned is what is taken, to the byte and
// by tag. Engine thread only.
struct PassPlan {
  int64_t bytes = 0;         // of the scratch
  int64_t worker_bytes = 0;  // of the scratch of each worker
  int64_t num_workers = 0;
  double flops = 0.0;              // of forward products, those that are recomputed among them
  int64_t file_bytes = 0;          // of what is offloaded, which is no memory
  std::vector<Scratch::Use> uses;  // of the scratch at its fullest, by tag
  std::vector<Scratch::Use> file_uses;
  // What a pass whose forward and backward are apart holds between them, besides the scratch, which
  // serves other passes meanwhile.
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
  const PassPlan& measure(FunctionRef<void(Backend&)> pass);
  // The same of a pass that holds something between its forward and its backward (Scratch::Hold),
  // and returns what it defers.
  const PassPlan& measure_held(FunctionRef<int64_t(Backend&)> pass);
  [[nodiscard]] const PassPlan& plan() const { return plan_; }

 private:
  std::unique_ptr<Backend> counter_;
  Scratch held_ = Scratch::counting(Scratch::Counted::kHeld);
  PassPlan plan_;
};

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
  // The plan of the pass that was counted last.
  [[nodiscard]] const PassPlan& last_plan() const { return meter_.plan(); }
  // What a pass takes (borrowed until the next call), and space for it on backend(), but in files.
  const PassPlan& measure(FunctionRef<void(Backend&)> pass) { return meter_.measure(pass); }
  const PassPlan& measure_held(FunctionRef<int64_t(Backend&)> pass) {
    return meter_.measure_held(pass);
  }
  void book(const PassPlan& plan) { backend_->book(plan.bytes, plan.worker_bytes); }

 private:
  std::unique_ptr<Backend> backend_;
  model::RopeTables ropes_;
  PassMeter meter_;
};

// PassBuilder: makes a model::Pass out of sequences: flat tokens, positions, row groups. Owns the
// arrays that the pass borrows and reuses them, so that a warm step allocates nothing. Engine
// thread only.
class PassBuilder {
 public:
  void clear();
  // Appends a sequence's tokens from first_position on; nothing is kept in training.
  void append(std::span<const int32_t> tokens, int64_t first_position, model::LoraAdapter* adapter,
              model::SequenceCache kept = {});
  // Passes along with this one go up to so many positions.
  void reach(int64_t positions) { num_positions_ = std::max(num_positions_, positions); }
  // The pass borrows this builder until the next clear(). Makes the rope table long enough.
  model::Pass build(Backend& backend, const model::ModelWeights& weights, model::RopeTables& ropes,
                    const model::CacheLayout& cache);

  // A pass over other rows with all else of `pass`, whose lists it uses.
  model::Pass build_like(const model::Pass& pass);

  // What a pass that was counted keeps.
  [[nodiscard]] const std::vector<model::SavedCost>& saved_costs() const { return lists_.saved; }

  [[nodiscard]] int64_t num_tokens() const { return static_cast<int64_t>(tokens_.size()); }

 private:
  std::vector<int32_t> tokens_;
  std::vector<int32_t> positions_;
  std::vector<model::PassSequence> sequences_;
  model::RowGroups rows_;
  model::PassLists lists_;
  int64_t num_positions_ = 0;
};

}  // namespace strata::engine
