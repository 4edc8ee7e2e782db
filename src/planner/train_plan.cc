// SPDX-License-Identifier: Apache-2.0
#include "planner/train_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "base/error.h"
#include "report/format.h"

namespace strata::planner {
namespace {

engine::PlanShape pass_of(const RunShape& shape, int64_t micro_tokens) {
  engine::PlanShape pass = shape.pass;
  pass.pass_tokens = pass_tokens(shape, micro_tokens);
  return pass;
}

// Of passes over what evaluates, which may be longer than those that train.
int64_t evaluation_bytes(engine::Engine& engine, const RunShape& shape, int64_t micro_tokens) {
  engine::PlanShape pass = shape.pass;
  pass.pass_tokens = 0;
  for (const LongestPass& longest : shape.longest_passes) {
    if (longest.limit == micro_tokens) pass.pass_tokens = longest.evaluated;
  }
  if (pass.pass_tokens <= pass_tokens(shape, micro_tokens)) return 0;
  pass.backward = pass.train_base = false;
  return engine::plan_pass_bytes(engine, pass);
}

bool weights_in_files(const engine::Engine& engine, const RunShape& shape) {
  return shape.pass.weights_in_files || engine.model().weights->in_files();
}

// Passes that the sequences take, in their order.
int64_t count_passes(const std::vector<int64_t>& lengths, int64_t pass_tokens) {
  int64_t passes = 0, tokens = 0;
  for (const int64_t length : lengths) {
    if (passes == 0 || tokens + length > pass_tokens) {
      ++passes;
      tokens = 0;
    }
    tokens += length;
  }
  return passes;
}

}  // namespace

engine::Work work_of_step(engine::Engine& engine, const RunShape& shape, const TrainPlan& plan) {
  return engine::step_work(*engine.model().weights,
                           {.lengths = shape.lengths,
                            .modules = shape.pass.modules,
                            .indexer_loss = shape.pass.indexer_loss},
                           {.tokens = static_cast<double>(shape.step_tokens),
                            .number = plan.num_passes,
                            .pass_tokens = plan.pass.pass_tokens,
                            .weights_in_files = weights_in_files(engine, shape)},
                           plan.recompute);
}

TrainPlan plan_train(engine::Engine& engine, const RunShape& shape, int64_t micro_tokens,
                     engine::RecomputePlan recompute) {
  TrainPlan plan;
  plan.micro_tokens = micro_tokens;
  plan.pass = pass_of(shape, micro_tokens);
  plan.pass.recompute = recompute.recompute;
  plan.recompute = std::move(recompute);
  const int64_t bytes =
      std::max(plan.recompute.bytes, evaluation_bytes(engine, shape, micro_tokens));
  plan.memory = engine::plan_memory(engine, plan.pass, bytes, plan.recompute.file_bytes);
  double tokens = 0.0;
  for (const int64_t length : shape.lengths) tokens += static_cast<double>(length);
  plan.num_passes = std::max(1.0, static_cast<double>(count_passes(shape.lengths, micro_tokens)) *
                                      static_cast<double>(shape.step_tokens) / tokens);
  plan.work = work_of_step(engine, shape, plan);
  return plan;
}

TrainPlan plan_train(engine::Engine& engine, const RunShape& shape, int64_t micro_tokens,
                     const model::Recompute& recompute) {
  return plan_train(engine, shape, micro_tokens,
                    engine::describe_recompute(engine, pass_of(shape, micro_tokens), recompute));
}

namespace {

// The plan that costs the least of those that a memory holds; or what is missing.
class Fit {
 public:
  // `any_files`: also activations in files beyond the space for them.
  Fit(engine::Engine& engine, const RunShape& shape, int64_t micro_tokens, int64_t budget,
      bool any_files)
      : engine_(engine), shape_(shape), budget_(budget), any_files_(any_files) {
    for (const int64_t limit : pass_limits(shape, micro_tokens)) {
      if (!any_files) try_passes(limit, /*offloads=*/false);
      if (any_files || shape.file_space.most > 0) try_passes(limit, /*offloads=*/true);
    }
  }
  [[nodiscard]] bool has() const { return best_.has_value(); }
  TrainPlan take() { return *std::move(best_); }
  [[nodiscard]] double cost() const { return best_ ? cost_ : std::numeric_limits<double>::max(); }
  // Of the shortest passes: bytes besides them, their tokens, and the least bytes of one.
  [[nodiscard]] int64_t besides() const { return besides_; }
  [[nodiscard]] int64_t least_tokens() const { return least_tokens_; }
  [[nodiscard]] int64_t least() const { return least_; }

 private:
  void try_passes(int64_t limit, bool offloads) {
    const engine::PlanShape pass = pass_of(shape_, limit);
    engine::RecomputePlanner planner(engine_, pass, offloads, shape_.price);
    const int64_t evaluated = evaluation_bytes(engine_, shape_, limit);
    const auto total = [&](int64_t bytes, int64_t file_bytes) {
      return engine::plan_memory(engine_, pass, std::max(bytes, evaluated), file_bytes).total();
    };
    least_ = std::max(planner.least(), evaluated);
    least_tokens_ = pass.pass_tokens;
    besides_ = total(least_, 0) - least_;
    if (total(planner.least(), 0) > budget_) return;
    const int64_t left = budget_ - (total(planner.most(), 0) - std::max(planner.most(), evaluated));
    std::optional<engine::RecomputePlan> plan =
        planner.plan(left, [&](int64_t bytes, int64_t file_bytes) {
          const int64_t planned = total(bytes, file_bytes);
          return planned <= budget_ && (any_files_ || shape_.file_space.holds(file_bytes, planned));
        });
    if (!plan) return;
    TrainPlan whole = plan_train(engine_, shape_, limit, *std::move(plan));
    const double cost = shape_.price.of(whole.work);
    if (best_ && cost >= cost_) return;
    best_ = std::move(whole);
    cost_ = cost;
  }

  engine::Engine& engine_;
  const RunShape& shape_;
  const int64_t budget_;
  const bool any_files_;
  std::optional<TrainPlan> best_;
  double cost_ = 0.0;
  int64_t besides_ = 0, least_tokens_ = 0, least_ = 0;
};

}  // namespace

bool needs_files(engine::Engine& engine, const RunShape& shape, int64_t micro_tokens,
                 const Budget& memory) {
  if (shape.pass.train_base) return false;
  RunShape in_files = shape;
  in_files.pass.weights_in_files = true;
  // Of the longest passes that keep all.
  const double least_cost =
      shape.price.of(plan_train(engine, in_files, micro_tokens, model::Recompute::kNone).work);
  for (const bool any_files : {false, true}) {
    const Fit in_memory(engine, shape, micro_tokens, memory.bytes, any_files);
    if (!any_files && shape.file_space.most == 0) {
      if (in_memory.has()) return false;
      continue;  // files are a last resort
    }
    if (in_memory.cost() <= least_cost) return false;
    const Fit weights(engine, in_files, micro_tokens, memory.bytes, any_files);
    if (in_memory.has() || weights.has()) return weights.cost() < in_memory.cost();
  }
  return true;
}

TrainPlan fit_train(engine::Engine& engine, const RunShape& shape, int64_t micro_tokens,
                    const Budget& memory) {
  Fit fit(engine, shape, micro_tokens, memory.bytes, /*any_files=*/false);
  if (fit.has()) return fit.take();
  Fit in_files(engine, shape, micro_tokens, memory.bytes, /*any_files=*/true);
  if (in_files.has()) return in_files.take();
  throw Error(
      ErrorCode::kInvalidArgument,
      fmt::format("--memory {}: {}adapters and optimizer take {} of it, and a pass of {} tokens "
                  "takes {} at least, with all it can in files; give more, or drop longer examples "
                  "with --max-length",
                  memory.text, weights_in_files(engine, shape) ? "" : "weights, ",
                  report::format_bytes(in_files.besides()), in_files.least_tokens(),
                  report::format_bytes(in_files.least())));
}

}  // namespace strata::planner
