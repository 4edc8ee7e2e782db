// SPDX-License-Identifier: Apache-2.0
// StageFitter: what stages keep of their activations within bytes that all of them share. What may
// be chosen does not depend on those bytes, so that more of them never cost more. Engine thread of
// its rank only.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/function_ref.h"
#include "engine/pipeline/stage_plan.h"
#include "engine/plan/cost.h"

namespace strata::engine {

// What a pipeline keeps, and what that takes.
struct StagesChoice {
  model::RecomputeRegions regions;
  model::Recompute recompute;
  std::vector<StagePlan> stages = {};
  [[nodiscard]] int64_t bytes() const;
  // Bytes of activations in files, apart from that.
  [[nodiscard]] int64_t file_bytes() const;
};

// How many of the ranks a process has, 0: all; and bytes that the first process takes besides its
// stages.
struct Processes {
  int ranks_each = 0;
  int64_t of_first = 0;
};

// Borrows all it is given: an engine for each stage, which may be one that can only plan.
class StageFitter {
 public:
  StageFitter(const PipelinePlan& plan, std::span<Engine* const> engines, const PlanShape& shape,
              const Price& price = {}, const Processes& processes = {});
  ~StageFitter();
  StageFitter(const StageFitter&) = delete;
  StageFitter& operator=(const StageFitter&) = delete;

  [[nodiscard]] StagesChoice plan_stages(const model::RecomputeRegions& regions,
                                         const model::Recompute& recompute);
  // What stages have to do for a micro-batch besides recomputing, and whether their frozen weights
  // are in files, or where all parameters train masters and moments.
  struct Work {
    std::span<const engine::Work> of_stages;
    bool in_files = false;
  };
  // Whether there is space for what a choice has in files.
  using HasFiles = FunctionRef<bool(const StagesChoice& choice)>;
  // The choice whose busiest rank has the least to do, of those that take at most `bytes` of each
  // process, and only where there is one of them have anything in files: of any
  // number of layers of each activation where layers are regions of their own, and of the presets
  // in all regions. It has no more to do than one for fewer bytes. None where nothing fits.
  [[nodiscard]] std::optional<StagesChoice> fit(std::span<const model::RecomputeRegions> regions,
                                                const Work& work, int64_t bytes,
                                                HasFiles has_files);
  // What each stage recomputes of a micro-batch, and writes and reads of it.
  [[nodiscard]] std::vector<engine::Work> recompute_work(const model::RecomputeRegions& regions,
                                                         const model::Recompute& recompute) const;
  // All that the busiest rank has to do for a micro-batch, in floating-point operations.
  [[nodiscard]] double cost(const StagesChoice& choice, const Work& work) const {
    return cost(choice.regions, choice.recompute, work);
  }
  // Where nothing is recomputed.
  [[nodiscard]] double least_cost(const Work& work) const;
  // Activations of a micro-batch, of each stage.
  [[nodiscard]] std::span<const std::vector<model::SavedCost>> saved() const { return saved_; }
  // The least that anything fit() has tried takes of a process.
  [[nodiscard]] int64_t least() const { return least_; }

 private:
  struct Preset {
    double cost = 0.0;
    model::RecomputeRegions regions = {};
    model::Recompute recompute = {};
  };

  [[nodiscard]] std::vector<Preset> presets_by_cost(
      std::span<const model::RecomputeRegions> regions, const Work& work) const;
  [[nodiscard]] std::optional<StagesChoice> fit_cheapest(
      std::span<const model::RecomputeRegions> regions, const Work& work, int64_t bytes,
      HasFiles has_files);
  [[nodiscard]] std::optional<StagesChoice> fit_preset(const Preset& preset, int64_t bytes,
                                                       HasFiles has_files);
  void ensure_fronts(const model::RecomputeRegions& regions);
  [[nodiscard]] StagesChoice merge_choices(const model::RecomputeRegions& regions,
                                           std::span<const size_t> choices);
  [[nodiscard]] std::optional<StagesChoice> fit_layers(const model::RecomputeRegions& regions,
                                                       const Work& work, int64_t bytes);
  [[nodiscard]] int64_t bytes_of(std::span<const StagePlan> stages) const;
  // That may be in files in place of memory.
  [[nodiscard]] int64_t base_bytes(Engine& engine) const;
  void account_base_bytes_in_files(std::span<StagePlan> stages) const;
  [[nodiscard]] PlanShape shape_of(int stage, const model::RecomputeRegions& regions) const;
  [[nodiscard]] double cost(const model::RecomputeRegions& regions,
                            const model::Recompute& recompute, const Work& work) const;
  [[nodiscard]] std::vector<double> cost_by_rank(std::span<const engine::Work> of_stages) const;

  const PipelinePlan& plan_;
  std::span<Engine* const> engines_;
  const PlanShape& shape_;
  const Price price_;
  const Processes processes_;
  std::vector<std::vector<model::SavedCost>> saved_;       // of each stage
  std::vector<std::unique_ptr<class StageFront>> fronts_;  // of each stage, made when first needed
  int64_t least_ = INT64_MAX;
};

}  // namespace strata::engine
