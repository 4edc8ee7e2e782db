// SPDX-License-Identifier: Apache-2.0
#include "apps/plan/plan_front.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
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

FrontPoint point_of(const TrainPlan& plan, const MachineLimits& limits) {
  return {.gib = static_cast<double>(plan.memory.total()) / kGiB,
          .seconds = engine::seconds_of(plan.work, limits)};
}

// The best plans for budgets from the least that training takes to all that it can use; none takes
// more than another and is slower.
std::vector<FrontPoint> front_of(const PlannedRun& run) {
  std::vector<FrontPoint> points;
  for (const int64_t limit : pass_limits(run.shape, run.micro_tokens)) {
    engine::PlanShape pass = run.shape.pass;
    pass.pass_tokens = pass_tokens(run.shape, limit);
    for (const bool offloads : {false, true}) {
      if (offloads && run.shape.file_room == 0) continue;
      engine::RecomputePlanner planner(run.engine, pass, offloads);
      for (int i = 0; i <= kBudgets; ++i) {
        const int64_t bytes = planner.least() + (planner.most() - planner.least()) / kBudgets * i;
        engine::RecomputePlan plan = planner.plan(i < kBudgets ? bytes : planner.most());
        if (plan.file_bytes > run.shape.file_room) continue;
        points.push_back(
            point_of(plan_train(run.engine, run.shape, limit, std::move(plan)), run.limits));
      }
    }
  }
  std::sort(points.begin(), points.end(), [](const FrontPoint& a, const FrontPoint& b) {
    return a.gib != b.gib ? a.gib < b.gib : a.seconds < b.seconds;
  });
  std::vector<FrontPoint> front;
  for (const FrontPoint& point : points) {
    if (front.empty() || point.seconds < front.back().seconds) front.push_back(point);
  }
  return front;
}

// A dot each.
report::CurveSeries dots(std::string name, const std::vector<FrontPoint>& points) {
  report::CurveSeries series = {.name = std::move(name), .markers = true};
  for (const FrontPoint& point : points) {
    series.x.insert(series.x.end(), {point.gib, std::numeric_limits<double>::quiet_NaN()});
    series.y.insert(series.y.end(), {point.seconds, std::numeric_limits<double>::quiet_NaN()});
    series.labels.insert(series.labels.end(), {point.name, ""});
  }
  return series;
}

// With less memory than a point takes the one before it holds.
report::CurveSeries steps(std::string name, const std::vector<FrontPoint>& points) {
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

std::vector<FrontPoint> points_of_presets(const PlannedRun& run) {
  std::vector<FrontPoint> points;
  const auto add = [&](std::string name, const model::Recompute& policy) {
    points.push_back(
        point_of(plan_train(run.engine, run.shape, run.micro_tokens, policy), run.limits));
    points.back().name = std::move(name);
  };
  add("none", model::Recompute::kNone);
  add("full", model::Recompute::kFull);
  for (const model::RecomputePreset& preset : model::recompute_presets()) {
    add(std::string(preset.name), preset.value());
  }
  // Presets that come to the same share a dot, and a label.
  std::sort(points.begin(), points.end(), [](const FrontPoint& a, const FrontPoint& b) {
    return a.gib != b.gib ? a.gib < b.gib : a.seconds < b.seconds;
  });
  std::vector<FrontPoint> out;
  for (FrontPoint& point : points) {
    const bool is_same =
        !out.empty() && out.back().gib == point.gib && out.back().seconds == point.seconds;
    if (is_same) out.back().name += ", " + point.name;
    if (!is_same) out.push_back(std::move(point));
  }
  return out;
}

}  // namespace

void draw_front(const std::string& path, const PlannedRun& run, const TrainPlan& plan) {
  const report::CurveChart chart = {
      .title = fmt::format("training {} tokens a step", run.shape.step_tokens),
      .x_label = "memory, GiB",
      .y_label = "predicted seconds a step",
      .series = {steps("fastest that fits", front_of(run)), dots("presets", points_of_presets(run)),
                 dots("this plan", {point_of(plan, run.limits)})},
      .from_zero = true};
  write_file_atomic(path, report::svg_chart(chart));
}

}  // namespace strata::apps
