// StagePlan: what a stage will take of the memory, before the first step: its weights, what trains,
// and its passes, counted like any other (engine/plan/pass_plan.h): what one works with, what each
// in flight holds, as many as its rank's queue has at once, and what is on its way to other stages.
// StageFitter: what stages keep of their activations within bytes that all of them share.
// Engine thread of its rank only.
#pragma once
#include <optional>
#include <span>
#include <vector>

#include "engine/pipeline/pipeline.h"
#include "engine/plan/memory_plan.h"

namespace strata::engine {

struct StagePlan {
  int64_t weight_bytes = 0;    // in memory
  int64_t file_bytes = 0;      // of weights that lie in files instead
  int64_t training_bytes = 0;  // adapters or masters, with gradients and moments
  int64_t pass_bytes = 0;      // that a pass works with
  int64_t held_bytes = 0;      // by a micro-batch in flight
  int64_t border_bytes = 0;    // of states and gradients that wait to be sent
  int64_t peak_live = 0;       // micro-batches in flight
  int64_t deferred_bytes = 0;  // by one whose weight gradients wait
  int64_t peak_deferred = 0;   // such micro-batches
  int64_t message_bytes = 0;   // in the channels of what it sends (backend/thread_comm.h)
  int64_t list_bytes = 0;      // tables of positions, and lists of micro-batches in flight
  int64_t step_bytes = 0;      // of an optimizer step, beyond the pass's

  // For other stages, and for weight gradients' actions.
  [[nodiscard]] int64_t waiting_bytes() const {
    return border_bytes + peak_deferred * deferred_bytes;
  }
  // What depends on the activations that are kept.
  [[nodiscard]] int64_t activation_bytes() const { return pass_bytes + peak_live * held_bytes; }
  [[nodiscard]] int64_t total() const {
    return weight_bytes + training_bytes + activation_bytes() + waiting_bytes() + message_bytes +
           list_bytes + step_bytes;
  }
};

// Micro-batches between their forward and their backward on a stage, at most.
int64_t peak_live(const PipelinePlan& plan, int stage);
// And between their backward and their weight gradients.
int64_t peak_deferred(const PipelinePlan& plan, int stage);

// Of one stage, on an engine that has it; `shape` is a micro-batch's. Where the engine has no
// adapter, with one of the shape's modules.
StagePlan plan_stage(const PipelinePlan& plan, int stage, Engine& engine, const PlanShape& shape);
// Of every stage, on each rank. Collective.
std::vector<StagePlan> plan_stages(Pipeline& pipeline, const PlanShape& shape);

// What a pipeline keeps, and what that takes.
struct StagesChoice {
  model::RecomputeRegions regions;
  model::Recompute recompute;
  std::vector<StagePlan> stages = {};
  [[nodiscard]] int64_t bytes() const;
};

// Borrows all it is given: an engine for each stage, which may be one that can only plan.
class StageFitter {
 public:
  // `work`: of a micro-batch on each stage beside what is made again, in floating-point operations.
  StageFitter(const PipelinePlan& plan, std::span<Engine* const> engines, const PlanShape& shape,
              std::span<const double> work)
      : plan_(plan), engines_(engines), shape_(shape), work_(work) {}

  [[nodiscard]] StagesChoice count(const model::RecomputeRegions& regions,
                                   const model::Recompute& recompute);
  // The choice whose busiest rank has the least to do, of those that take at most `bytes`: of any
  // number of layers of each activation where layers are regions of their own, and of the presets
  // where a stage is made again as one. None where nothing fits.
  [[nodiscard]] std::optional<StagesChoice> fit(std::span<const model::RecomputeRegions> regions,
                                                int64_t bytes);
  // What each stage makes again of a micro-batch, in floating-point operations; and all that the
  // busiest rank has to do for one.
  [[nodiscard]] std::vector<double> again(const StagesChoice& choice);
  [[nodiscard]] double cost(const StagesChoice& choice);
  // The least that anything fit() has tried takes.
  [[nodiscard]] int64_t least() const { return least_; }

 private:
  [[nodiscard]] std::optional<StagesChoice> fit_layers(const model::RecomputeRegions& regions,
                                                       int64_t bytes);
  [[nodiscard]] PlanShape shape_of(int stage, const model::RecomputeRegions& regions) const;
  [[nodiscard]] std::vector<double> by_rank(std::span<const double> of_stages) const;
  [[nodiscard]] double busiest(std::span<const double> of_stages) const;

  const PipelinePlan& plan_;
  std::span<Engine* const> engines_;
  const PlanShape& shape_;
  std::span<const double> work_;
  std::vector<std::vector<model::SavedCost>> saved_;  // of each stage
  int64_t least_ = INT64_MAX;
};

}  // namespace strata::engine
