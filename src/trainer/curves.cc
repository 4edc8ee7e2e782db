// SPDX-License-Identifier: Apache-2.0
#include "trainer/curves.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

namespace strata::apps {
namespace {

constexpr int kSmallHeight = 220;
// Over a wider range the end of a run would be a flat line.
constexpr double kWideRange = 5;

bool is_wide(const report::CurveSeries& series) {
  const auto [low, high] = std::minmax_element(series.y.begin(), series.y.end());
  return low != series.y.end() && *low > 0 && *high > kWideRange * *low;
}

}  // namespace

report::CurveSeries series_of(std::span<const report::MetricsRecord> records,
                              std::string_view metric, report::CurveSeries series) {
  for (const report::MetricsRecord& record : records) {
    const double value = record.number(metric);
    if (!std::isfinite(value)) continue;
    series.x.push_back(static_cast<double>(record.step));
    series.y.push_back(value);
  }
  return series;
}

report::CurveSeries smooth(const report::CurveSeries& raw, const std::string& name) {
  const double span = std::clamp(static_cast<double>(raw.x.size()) / 50, 1.0, 15.0);
  return {.name = name, .x = raw.x, .y = report::smoothed(raw.y, span)};
}

namespace {

using Records = std::span<const report::MetricsRecord>;

report::CurveChart loss_chart(Records records) {
  report::CurveSeries step = series_of(records, "loss", {.name = "step", .faint = true});
  report::CurveSeries eval =
      series_of(records, "eval_loss", {.name = "evaluation", .markers = true});
  const bool of_pairs = std::ranges::any_of(records, [](const report::MetricsRecord& record) {
    return std::isfinite(record.number("rewards/margins"));
  });
  report::CurveChart chart{.title = "loss",
                           .x_label = "step",
                           .y_label = of_pairs ? "loss per pair" : "loss in nats per token"};
  chart.log_y = is_wide(step);
  chart.series = {step, smooth(step, "training (smoothed)")};
  if (!eval.x.empty()) chart.series.push_back(std::move(eval));
  return chart;
}

report::CurveChart reward_chart(Records records) {
  const report::CurveSeries step = series_of(records, "reward", {.name = "step", .faint = true});
  report::CurveSeries eval =
      series_of(records, "eval_reward", {.name = "evaluation", .markers = true});
  report::CurveChart chart{.title = "reward", .x_label = "step", .y_label = "mean reward"};
  chart.series = {step, smooth(step, "training (smoothed)")};
  if (!eval.x.empty()) chart.series.push_back(std::move(eval));
  return chart;
}

report::CurveChart learning_rate_chart(Records records) {
  return {.title = "learning rate",
          .x_label = "step",
          .y_label = "rate",
          .series = {series_of(records, "lr", {})},
          .from_zero = true,
          .height = kSmallHeight};
}

report::CurveChart gradient_norm_chart(Records records) {
  const report::CurveSeries norm = series_of(records, "grad_norm", {.name = "step", .faint = true});
  report::CurveChart chart{.title = "gradient norm before clipping",
                           .x_label = "step",
                           .y_label = "norm",
                           .log_y = is_wide(norm),
                           .height = kSmallHeight};
  chart.series = {norm, smooth(norm, "smoothed")};
  return chart;
}

}  // namespace

std::string training_curves_svg(std::span<const report::MetricsRecord> records) {
  const bool of_rewards = std::ranges::any_of(records, [](const report::MetricsRecord& record) {
    return std::isfinite(record.number("reward"));
  });
  // The loss says nothing in a run on rewards.
  std::vector<report::CurveChart> charts = {
      of_rewards ? reward_chart(records) : loss_chart(records), learning_rate_chart(records),
      gradient_norm_chart(records)};
  if (records.empty()) return report::svg_charts(charts);
  // The same steps stand below each other.
  for (report::CurveChart& chart : charts) {
    chart.x_range = {static_cast<double>(records.front().step),
                     static_cast<double>(records.back().step)};
  }
  return report::svg_charts(charts);
}

}  // namespace strata::apps
