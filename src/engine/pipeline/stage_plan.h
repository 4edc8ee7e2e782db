// StagePlan: what a stage will take of the memory, before the first step: its weights, what trains,
// and its passes, counted like any other (engine/plan/pass_plan.h), as many as its rank's queue
// holds in flight at once. Engine thread of its rank only.
#pragma once
#include <vector>

#include "engine/pipeline/pipeline.h"
#include "engine/plan/memory_plan.h"

namespace strata::engine {

struct StagePlan {
  int64_t weight_bytes = 0;
  int64_t training_bytes = 0;  // adapters or masters, with gradients and moments
  int64_t pass_bytes = 0;      // of one micro-batch
  int64_t peak_live = 0;       // micro-batches in flight

  [[nodiscard]] int64_t total() const {
    return weight_bytes + training_bytes + peak_live * pass_bytes;
  }
};

// Micro-batches between their forward and their backward on a stage, at most.
int64_t peak_live(const PipelinePlan& plan, int stage);

// Of every stage, on each rank; `shape` is a micro-batch's. Collective.
std::vector<StagePlan> plan_stages(Pipeline& pipeline, const PlanShape& shape);

}  // namespace strata::engine
