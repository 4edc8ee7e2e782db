// SPDX-License-Identifier: Apache-2.0
// RecomputePlan: what passes of a shape keep of their activations within so many bytes, in memory
// or, where they may, in files, such that what backward recomputes and what is written and read
// costs as little as it can. Found from counted passes alone: tags of equal layers are classes, of
// which any number of layers may be kept; the best choice of numbers is a bounded knapsack, solved
// exactly, and its answers are counted until one fits. Engine thread only.
#pragma once
#include <memory>
#include <optional>
#include <vector>

#include "engine/plan/cost.h"
#include "engine/plan/memory_plan.h"

namespace strata::engine {

struct RecomputePlan {
  // A tag in layers where it takes equally much.
  struct Row {
    ScratchTag tag;
    std::vector<int64_t> layers;
    int64_t num_kept = 0;       // in memory or in files
    int64_t num_offloaded = 0;  // of these
    int64_t layer_bytes = 0;    // of one layer
    double layer_flops = 0.0;   // of making one layer's again
    [[nodiscard]] int64_t num_again() const { return std::ssize(layers) - num_kept; }
  };
  model::Recompute recompute;
  std::vector<Row> rows;
  int64_t bytes = 0;  // of the largest pass of the shape; of those in flight, with all they hold
  std::vector<Scratch::Use> uses;  // of its scratch at the fullest, by tag
  int64_t file_bytes = 0;          // of what is offloaded, besides that
  double flops = 0.0;              // of recomputing what is not kept, in one pass
  double again_bytes = 0.0;        // that move for it
  // The price of what is recomputed and what is offloaded, in floating-point operations.
  [[nodiscard]] double cost(const Price& price = {}) const {
    return price.of({.flops = flops,
                     .bytes = again_bytes,
                     .file_bytes = kFileMoves * static_cast<double>(file_bytes)});
  }
};

// The plan of a choice that was given.
RecomputePlan plan_given_recompute(Engine& engine, const PlanShape& shape,
                                   const model::Recompute& recompute);

// The choices for passes of one shape, for any number of bytes. Borrows the engine.
class RecomputePlanner {
 public:
  // `offloads`: activations may lie in files.
  RecomputePlanner(Engine& engine, const PlanShape& shape, bool offloads = false,
                   const Price& price = {});
  ~RecomputePlanner();
  RecomputePlanner(const RecomputePlanner&) = delete;
  RecomputePlanner& operator=(const RecomputePlanner&) = delete;

  // Bytes with full recompute, or with everything offloaded.
  [[nodiscard]] int64_t least() const { return least_; }
  [[nodiscard]] int64_t most() const { return most_; }  // where all is kept
  // The choice for passes of at most `bytes`, which is no less than least(). It costs no more than
  // any for fewer bytes, nor than a policy with a name that fits.
  [[nodiscard]] RecomputePlan plan(int64_t bytes);
  // The same of the choices that `allowed` finds right for their bytes, of the pass and of files,
  // and then for fewer too; nothing where that is none.
  using Allowed = FunctionRef<bool(int64_t bytes, int64_t file_bytes)>;
  [[nodiscard]] std::optional<RecomputePlan> plan(int64_t bytes, Allowed allowed);
  // All choices by rising bytes, about, and falling cost, none of which is better in both: from
  // recomputing about all to keeping all.
  struct Point {
    int64_t bytes = 0;
    double cost = 0.0;
  };
  [[nodiscard]] std::vector<Point> pareto_front();
  // The choice at that place of pareto_front().
  [[nodiscard]] model::Recompute at(size_t point) const;

 private:
  struct Best;

  [[nodiscard]] int64_t count_bytes(const model::Recompute& recompute) const;
  void init_choices();
  [[nodiscard]] RecomputePlan plan_choice(const model::Recompute& recompute, int64_t enough) const;
  [[nodiscard]] size_t num_choices_within(int64_t bytes) const;
  void consider_choices(Best& best) const;

  Engine& engine_;
  PlanShape shape_;
  bool offloads_ = false;
  Price price_;
  std::vector<model::SavedCost> saved_;  // by a pass that keeps all
  model::Recompute least_recompute_;
  int64_t least_ = 0;
  int64_t most_ = 0;
  int64_t base_ = 0;                                       // bytes that choices add to
  std::vector<RecomputePlan> named_;                       // what policies with a name come to
  std::unique_ptr<const class RecomputeChoices> choices_;  // made when first needed
};

}  // namespace strata::engine
