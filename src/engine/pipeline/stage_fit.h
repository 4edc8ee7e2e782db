// SPDX-License-Identifier: Apache-2.0
// StageFitter: what stages keep of their activations within bytes that all of them share. Engine
// thread of its rank only.
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "engine/pipeline/stage_plan.h"

namespace strata::engine {

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
  // `work`: of a micro-batch on each stage besides recomputing, in floating-point operations.
  StageFitter(const PipelinePlan& plan, std::span<Engine* const> engines, const PlanShape& shape,
              std::span<const double> work)
      : plan_(plan), engines_(engines), shape_(shape), work_(work) {}

  [[nodiscard]] StagesChoice count(const model::RecomputeRegions& regions,
                                   const model::Recompute& recompute);
  // The choice whose busiest rank has the least to do, of those that take at most `bytes`: of any
  // number of layers of each activation where layers are regions of their own, and of the presets
  // where a stage is recomputed as one. None where nothing fits.
  [[nodiscard]] std::optional<StagesChoice> fit(std::span<const model::RecomputeRegions> regions,
                                                int64_t bytes);
  // What each stage recomputes of a micro-batch, in floating-point operations; and all that the
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
