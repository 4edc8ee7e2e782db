// RecomputePlan: what passes of a shape keep of their activations within so many bytes, such that
// backward makes as little again as it can. Found from counted passes alone: tags of equal layers
// are classes, of which any number of layers may be kept; the best choice of numbers is a bounded
// knapsack, solved exactly, and its answers are counted until one fits. Engine thread only.
#pragma once
#include <string>
#include <vector>

#include "engine/plan/memory_plan.h"

namespace strata::engine {

struct RecomputePlan {
  // A tag in layers where it takes equally much.
  struct Row {
    ScratchTag tag;
    int64_t num_layers = 0;
    int64_t num_kept = 0;
    int64_t layer_bytes = 0;   // of one layer
    double layer_flops = 0.0;  // of making one layer's again
  };
  model::Recompute recompute;
  std::vector<Row> rows;
  int64_t bytes = 0;   // of the largest pass of the shape
  double flops = 0.0;  // of making again what is not kept, in one pass
};

// Of a given choice.
RecomputePlan describe_recompute(Engine& engine, const PlanShape& shape,
                                 const model::Recompute& recompute);

// The choice for passes of at most `bytes`. Error{kInvalidArgument} names the least that they take.
RecomputePlan plan_recompute(Engine& engine, const PlanShape& shape, int64_t bytes);

}  // namespace strata::engine
