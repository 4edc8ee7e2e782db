// SPDX-License-Identifier: Apache-2.0
#include "apps/plan/plan_front.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/files.h"
#include "report/svg_curve.h"

namespace strata::apps {
namespace {

constexpr int kBudgets = 12;  // that the front is looked for at, for each length of a pass
constexpr double kGiB = 1 << 30;

struct FrontPoint {
  double gib = 0.0;
  double seconds = 0.0;
  std::string name = {};  // of a preset
};

using Presets = std::span<const std::pair<std::string, engine::RunPlan>>;

FrontPoint point_of(const engine::RunPlan& plan, const engine::MachineLimits& limits) {
  return {.gib = static_cast<double>(plan.memory.total()) / kGiB,
          .seconds = engine::step_seconds(plan, limits)};
}

void sort_by_memory(std::vector<FrontPoint>& points) {
  std::sort(points.begin(), points.end(), [](const FrontPoint& a, const FrontPoint& b) {
    return a.gib != b.gib ? a.gib < b.gib : a.seconds < b.seconds;
  });
}

// Those that none with less memory is as fast as.
std::vector<FrontPoint> keep_pareto_optimal(std::vector<FrontPoint> points) {
  sort_by_memory(points);
  std::vector<FrontPoint> front;
  for (const FrontPoint& point : points) {
    if (front.empty() || point.seconds < front.back().seconds) front.push_back(point);
  }
  return front;
}

// Policies by their names, as far as there is space for their files.
std::vector<std::pair<std::string, engine::RunPlan>> plan_presets_that_fit(planner::TrainRun run) {
  std::vector<std::pair<std::string, engine::RunPlan>> plans;
  const auto add = [&](std::string_view name, const model::Recompute& policy) {
    run.recompute = policy;
    engine::RunPlan plan = planner::plan_run(run);
    if (!run.shape.file_space.holds(plan.recompute.file_bytes, plan.memory.total())) return;
    plans.emplace_back(name, std::move(plan));
  };
  add("none", model::Recompute::kNone);
  add("full", model::Recompute::kFull);
  for (const model::RecomputePreset& preset : model::recompute_presets()) {
    add(preset.name, preset.value());
  }
  return plans;
}

// From the least that training takes to all that it can use, and those of the presets.
std::vector<int64_t> budgets_to_try(const engine::RecomputePlanner& planner, Presets presets) {
  std::vector<int64_t> budgets = {planner.most()};
  for (int i = 0; i < kBudgets; ++i)
    budgets.push_back(planner.least() + (planner.most() - planner.least()) / kBudgets * i);
  for (const auto& [name, preset] : presets) budgets.push_back(preset.recompute.bytes);
  return budgets;
}

// Adds the point of the best plan for each budget, in passes of one length.
void add_best_points(const planner::TrainRun& run, int64_t limit, bool offloads,
                     const engine::MachineLimits& limits, Presets presets,
                     std::vector<FrontPoint>& points) {
  const engine::PlanShape pass = planner::training_pass_shape(run.shape, limit);
  engine::RecomputePlanner planner(run.whole, pass, offloads, engine::price_of(limits));
  const auto allowed = [&](int64_t taken, int64_t file_bytes) {
    const int64_t planned = engine::plan_memory(run.whole, pass, taken, file_bytes).total();
    return run.shape.file_space.holds(file_bytes, planned);
  };
  for (const int64_t bytes : budgets_to_try(planner, presets)) {
    std::optional<engine::RecomputePlan> plan = planner.plan(bytes, allowed);
    if (!plan) continue;
    points.push_back(point_of(planner::plan_run(run, limit, *std::move(plan)), limits));
  }
}

// None takes more than another and is slower.
std::vector<FrontPoint> plan_pareto_front(const planner::TrainRun& run,
                                          const engine::MachineLimits& limits, Presets presets) {
  std::vector<FrontPoint> points;
  for (const int64_t limit : pass_limits_to_try(run.shape)) {
    for (const bool offloads : {false, true}) {
      if (offloads && run.shape.file_space.most == 0) continue;
      add_best_points(run, limit, offloads, limits, presets, points);
    }
  }
  return keep_pareto_optimal(std::move(points));
}

// A dot each: the NaN behind it keeps it from being joined to the next.
report::CurveSeries scatter_series(std::string name, const std::vector<FrontPoint>& points) {
  report::CurveSeries series = {.name = std::move(name), .markers = true};
  for (const FrontPoint& point : points) {
    series.x.insert(series.x.end(), {point.gib, std::numeric_limits<double>::quiet_NaN()});
    series.y.insert(series.y.end(), {point.seconds, std::numeric_limits<double>::quiet_NaN()});
    series.labels.insert(series.labels.end(), {point.name, ""});
  }
  return series;
}

// With less memory than a point takes the one before it holds.
report::CurveSeries staircase_series(std::string name, const std::vector<FrontPoint>& points) {
  report::CurveSeries series = {.name = std::move(name)};
  for (const FrontPoint& point : points) {
    if (!series.y.empty()) {
      series.x.push_back(point.gib);
      series.y.push_back(series.y.back());
    }
    series.x.push_back(point.gib);
    series.y.push_back(point.seconds);
  }
  return series;
}

// Those that come to the same share a dot, and a label.
std::vector<FrontPoint> merge_equal_points(std::vector<FrontPoint> points) {
  sort_by_memory(points);
  std::vector<FrontPoint> out;
  for (FrontPoint& point : points) {
    const bool is_same =
        !out.empty() && out.back().gib == point.gib && out.back().seconds == point.seconds;
    if (is_same) out.back().name += ", " + point.name;
    if (!is_same) out.push_back(std::move(point));
  }
  return out;
}

std::vector<FrontPoint> merged_preset_points(Presets presets, const engine::MachineLimits& limits) {
  std::vector<FrontPoint> points;
  for (const auto& [name, plan] : presets) {
    points.push_back(point_of(plan, limits));
    points.back().name = name;
  }
  return merge_equal_points(std::move(points));
}

}  // namespace

void write_pareto_chart(const std::string& path, planner::TrainRun run,
                        const engine::MachineLimits& limits, const engine::RunPlan& plan) {
  run.memory.reset();
  run.shape.pass.weights_in_files = plan.weights_in_files;
  run.shape.pass.state_in_files = plan.state_in_files;
  const auto presets = plan_presets_that_fit(run);
  const report::CurveChart chart = {
      .title = fmt::format("training {} tokens a step", run.shape.step_tokens),
      .x_label = fmt::format("memory, GiB (limits of the machine: {})", limits.source),
      .y_label = "predicted seconds a step",
      .series = {staircase_series("fastest that fits", plan_pareto_front(run, limits, presets)),
                 scatter_series("presets", merged_preset_points(presets, limits)),
                 scatter_series("this plan", {point_of(plan, limits)})},
      .from_zero = true};
  write_file_atomic(path, report::svg_chart(chart));
}

}  // namespace strata::apps
