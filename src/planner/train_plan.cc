// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "base/error.h"
#include "planner/planner.h"
#include "planner/staged_plan.h"
#include "report/format.h"

namespace strata::planner {
namespace {

// Bytes of passes over what evaluates, which may be longer than those that train.
int64_t plan_evaluation_bytes(engine::Engine& engine, const RunShape& shape, int64_t micro_tokens) {
  engine::PlanShape pass = shape.pass;
  const LongestPass* longest = find_longest(shape, micro_tokens);
  pass.pass_tokens = longest == nullptr ? 0 : longest->evaluated;
  if (pass.pass_tokens <= pass_tokens(shape, micro_tokens)) return 0;
  pass.backward = pass.train_base = false;
  return engine::plan_pass(engine, pass).total();
}

bool weights_in_files(const TrainRun& run) {
  return run.shape.pass.weights_in_files || run.whole.model().weights->in_files();
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

// On average.
double mean_passes_per_step(const RunShape& shape, int64_t micro_tokens) {
  double tokens = 0.0;
  for (const int64_t length : shape.lengths) tokens += static_cast<double>(length);
  const int64_t passes = count_passes(shape.lengths, micro_tokens);
  return std::max(1.0,
                  static_cast<double>(passes) * static_cast<double>(shape.step_tokens) / tokens);
}

// The work of a step, in a plan whose passes and memory are known.
engine::Work work_of_step(const TrainRun& run, const engine::RunPlan& plan) {
  engine::Work work = engine::step_work(*run.whole.model().weights,
                                        {.lengths = run.shape.lengths,
                                         .modules = run.shape.pass.modules,
                                         .indexer_loss = run.shape.pass.indexer_loss},
                                        {.tokens = static_cast<double>(run.shape.step_tokens),
                                         .number = plan.num_passes,
                                         .pass_tokens = plan.pass.pass_tokens,
                                         .weights_in_files = plan.weights_in_files},
                                        plan.recompute);
  work.file_bytes += engine::kStateMoves * static_cast<double>(plan.memory.state_file_bytes);
  return work;
}

// The one stage of a model that nothing divides.
engine::StagePlan to_stage_plan(const engine::MemoryPlan& memory) {
  engine::StagePlan stage = {.file_bytes = memory.file_bytes,
                             .state_file_bytes = memory.state_file_bytes};
  using enum engine::MemoryUse;
  for (const auto& [use, bytes] : memory.items) {
    if (use == kWeights) stage.weight_bytes = bytes;
    if (use == kAdapters || use == kBaseTraining) stage.training_bytes += bytes;
    if (use == kPass) stage.pass_bytes = bytes;
    if (use == kPositions) stage.list_bytes = bytes;
    if (use == kGradientsInTransit) stage.message_bytes = bytes;
    if (use == kStep) stage.step_bytes = bytes;
    if (use == kKvCache || use == kStates) stage.cache_bytes += bytes;
  }
  return stage;
}

// In passes as long as they may be.
engine::RunPlan plan_with_longest_passes(const TrainRun& run, const model::Recompute& recompute) {
  const int64_t tokens = run.shape.micro_tokens;
  return plan_run(
      run, tokens,
      engine::plan_given_recompute(run.whole, training_pass_shape(run.shape, tokens), recompute));
}

// What passes of each length can keep of their activations, which depends neither on a memory nor
// on what else is in files: each is counted once.
class PassChoices {
 public:
  engine::RecomputePlanner& ensure_planner(const TrainRun& run, int64_t limit, bool offloads) {
    std::unique_ptr<engine::RecomputePlanner>& own = planners_[{limit, offloads}];
    if (!own) {
      own = std::make_unique<engine::RecomputePlanner>(
          run.whole, training_pass_shape(run.shape, limit), offloads, run.shape.price);
    }
    return *own;
  }

 private:
  std::map<std::pair<int64_t, bool>, std::unique_ptr<engine::RecomputePlanner>> planners_;
};

// The plan that costs the least of those that a memory holds; or what is missing.
class Fit {
 public:
  // `any_files`: also activations in files beyond the space for them.
  Fit(const TrainRun& run, PassChoices& choices, bool any_files)
      : run_(run),
        engine_(run.whole),
        shape_(run.shape),
        choices_(choices),
        budget_(run.memory->bytes),
        any_files_(any_files) {
    for (const int64_t limit : pass_limits_to_try(shape_)) {
      if (!any_files) try_passes(limit, /*offloads=*/false);
      if (any_files || shape_.file_space.most > 0) try_passes(limit, /*offloads=*/true);
    }
  }
  [[nodiscard]] bool has() const { return best_.has_value(); }
  engine::RunPlan take() { return *std::move(best_); }
  [[nodiscard]] double cost() const { return best_ ? cost_ : std::numeric_limits<double>::max(); }
  // The shortest passes: bytes besides them, their tokens, and the least bytes of one.
  [[nodiscard]] int64_t besides() const { return besides_; }
  [[nodiscard]] int64_t least_tokens() const { return least_tokens_; }
  [[nodiscard]] int64_t least() const { return least_; }

 private:
  void try_passes(int64_t limit, bool offloads) {
    const engine::PlanShape pass = training_pass_shape(shape_, limit);
    engine::RecomputePlanner& planner = choices_.ensure_planner(run_, limit, offloads);
    const int64_t evaluated = plan_evaluation_bytes(engine_, shape_, limit);
    const auto total = [&](int64_t bytes, int64_t file_bytes) {
      return engine::plan_memory(engine_, pass, std::max(bytes, evaluated), file_bytes).total();
    };
    note_least(pass, std::max(planner.least(), evaluated));
    if (total(planner.least(), 0) > budget_) return;
    const int64_t left = budget_ - (total(planner.most(), 0) - std::max(planner.most(), evaluated));
    std::optional<engine::RecomputePlan> plan =
        planner.plan(left, [&](int64_t bytes, int64_t file_bytes) {
          const int64_t planned = total(bytes, file_bytes);
          return planned <= budget_ && (any_files_ || shape_.file_space.holds(file_bytes, planned));
        });
    if (!plan) return;
    keep_cheapest(plan_run(run_, limit, *std::move(plan)));
  }
  // Called with the passes that are tried last, the shortest.
  void note_least(const engine::PlanShape& pass, int64_t bytes) {
    least_ = bytes;
    least_tokens_ = pass.pass_tokens;
    besides_ = engine::plan_memory(engine_, pass, bytes, 0).total() - bytes;
  }
  void keep_cheapest(engine::RunPlan plan) {
    const double cost = shape_.price.of(plan.work.front());
    if (best_ && cost >= cost_) return;
    best_ = std::move(plan);
    cost_ = cost;
  }

  const TrainRun& run_;
  engine::Engine& engine_;
  const RunShape& shape_;
  PassChoices& choices_;
  const int64_t budget_;
  const bool any_files_;
  std::optional<engine::RunPlan> best_;
  double cost_ = 0.0;
  int64_t besides_ = 0, least_tokens_ = 0, least_ = 0;
};

// With the frozen weights in a file, or where all parameters train masters and moments.
TrainRun in_files_of(TrainRun run) {
  (run.shape.pass.train_base ? run.shape.pass.state_in_files : run.shape.pass.weights_in_files) =
      true;
  return run;
}

// What a memory holds with all of that in memory, or in files: each is tried once.
class Fits {
 public:
  explicit Fits(const TrainRun& run) : in_memory_(run), in_files_(in_files_of(run)) {}
  [[nodiscard]] const TrainRun& run(bool in_files) const {
    return in_files ? in_files_ : in_memory_;
  }
  Fit& ensure_tried(bool in_files, bool any_files) {
    std::unique_ptr<Fit>& fit = fits_[{in_files, any_files}];
    if (!fit) fit = std::make_unique<Fit>(run(in_files), choices_, any_files);
    return *fit;
  }

 private:
  const TrainRun in_memory_, in_files_;
  PassChoices choices_;
  std::map<std::pair<bool, bool>, std::unique_ptr<Fit>> fits_;
};

// Whether it had best be in files: the memory holds the run only so, or costs less.
bool try_whether_files_are_better(Fits& fits) {
  const TrainRun& run = fits.run(/*in_files=*/false);
  const RunShape& shape = run.shape;
  if (run.is_loaded) return false;
  // The cost of the longest passes that keep all.
  const double least_cost = shape.price.of(
      plan_with_longest_passes(fits.run(/*in_files=*/true), model::Recompute::kNone).work.front());
  for (const bool any_files : {false, true}) {
    const Fit& in_memory = fits.ensure_tried(/*in_files=*/false, any_files);
    if (!any_files && shape.file_space.most == 0) {
      if (in_memory.has()) return false;
      continue;  // files are a last resort
    }
    if (in_memory.cost() <= least_cost) return false;
    const Fit& in_files = fits.ensure_tried(/*in_files=*/true, any_files);
    if (in_memory.has() || in_files.has()) return in_files.cost() < in_memory.cost();
  }
  return true;
}

[[noreturn]] void throw_nothing_fits(const TrainRun& run, const Fit& fit) {
  throw Error(
      ErrorCode::kInvalidArgument,
      fmt::format("--memory {}: {}adapters and optimizer take {} of it, and a pass of {} tokens "
                  "takes {} at least{}; give more, or drop longer examples with --max-length",
                  run.memory->text, weights_in_files(run) ? "" : "weights, ",
                  report::format_bytes(fit.besides()), fit.least_tokens(),
                  report::format_bytes(fit.least()),
                  run.division.told.num_pipelines() > 1 ? "" : ", with all it can in files"));
}

engine::RunPlan plan_within(TrainRun run) {
  // Where there are several ranks none has anything in files.
  const bool in_memory = run.division.told.num_pipelines() > 1;
  if (in_memory) run.shape.file_space = {};
  Fits fits(run);
  const bool in_files = !in_memory && try_whether_files_are_better(fits);
  for (const bool any_files : {false, true}) {
    if (any_files && in_memory) break;
    Fit& fit = fits.ensure_tried(in_files, any_files);
    if (fit.has()) return fit.take();
  }
  throw_nothing_fits(fits.run(in_files), fits.ensure_tried(in_files, /*any_files=*/!in_memory));
}

}  // namespace

engine::RunPlan plan_run(const TrainRun& run) {
  if (!run.division.is_whole()) return plan_staged(run);
  return run.memory ? plan_within(run) : plan_with_longest_passes(run, run.recompute);
}

engine::RunPlan plan_run(const TrainRun& run, int64_t micro_tokens,
                         engine::RecomputePlan recompute) {
  const RunShape& shape = run.shape;
  engine::RunPlan plan = {.pipeline = run.division.told,
                          .schedule = run.division.schedule,
                          .micro_tokens = micro_tokens,
                          .pass = training_pass_shape(shape, micro_tokens),
                          .recompute = std::move(recompute),
                          .weights_in_files = weights_in_files(run),
                          .state_in_files = shape.pass.state_in_files};
  if (plan.pipeline.layers.empty())
    plan.pipeline = engine::make_whole_plan(run.whole.config().num_layers());
  plan.pass.recompute = plan.recompute.recompute;
  plan.num_passes = mean_passes_per_step(shape, micro_tokens);
  const int64_t bytes =
      std::max(plan.recompute.bytes, plan_evaluation_bytes(run.whole, shape, micro_tokens));
  plan.memory = engine::plan_memory(run.whole, plan.pass, bytes, plan.recompute.file_bytes);
  plan.stages.push_back(to_stage_plan(plan.memory));
  plan.work.push_back(engine::divide_products(
      1.0 / plan.pipeline.num_dealing() * work_of_step(run, plan), plan.pipeline.tensor));
  return plan;
}

engine::RunPlan plan_run(engine::Engine& engine, const engine::PlanShape& pass) {
  return {.pipeline = engine::make_whole_plan(engine.config().num_layers()),
          .pass = pass,
          .memory = engine::plan_memory(engine, pass)};
}

engine::StagePlan plan_stage(const engine::PipelinePlan& pipeline, int stage,
                             engine::Engine& engine, const engine::PlanShape& shape,
                             const engine::PassPlan& counted) {
  if (!pipeline.is_whole()) return engine::plan_stage(pipeline, stage, engine, shape);
  return to_stage_plan(engine::plan_memory(engine, shape, counted.total(), counted.file_bytes));
}

}  // namespace strata::planner
