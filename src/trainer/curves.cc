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
constexpr size_t kMostDots = 200;  // more would be a band

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

bool has_metric(Records records, std::string_view metric) {
  return std::ranges::any_of(records, [&](const report::MetricsRecord& record) {
    return std::isfinite(record.number(metric));
  });
}

report::CurveChart loss_chart(Records records) {
  report::CurveSeries step = series_of(records, "loss", {.name = "step", .faint = true});
  report::CurveSeries eval =
      series_of(records, "eval_loss", {.name = "evaluation", .markers = true});
  const bool of_pairs = has_metric(records, "rewards/margins");
  report::CurveChart chart{.title = "loss",
                           .x_label = "step",
                           .y_label = of_pairs                        ? "loss per pair"
                                      : has_metric(records, "reward") ? "loss"
                                                                      : "loss in nats per token"};
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

// A metric of pairs in training and in evaluation.
report::CurveChart pair_chart(Records records, const char* title, const char* y_label,
                              const std::string& metric) {
  const report::CurveSeries step = series_of(records, metric, {.name = "step", .faint = true});
  report::CurveChart chart{
      .title = title, .x_label = "step", .y_label = y_label, .height = kSmallHeight};
  chart.series = {step, smooth(step, "training (smoothed)"),
                  series_of(records, "eval_" + metric, {.name = "evaluation", .markers = true})};
  return chart;
}

report::CurveChart speed_chart(Records records) {
  const report::CurveSeries step =
      series_of(records, "tokens_per_s", {.name = "step", .faint = true});
  report::CurveChart chart{.title = "speed",
                           .x_label = "step",
                           .y_label = "tokens/s",
                           .from_zero = true,
                           .height = kSmallHeight};
  chart.series = {step, smooth(step, "smoothed")};
  return chart;
}

// The same steps stand below each other.
std::string charts_of_steps(Records records, std::vector<report::CurveChart> charts) {
  for (report::CurveChart& chart : charts) {
    if (records.empty()) break;
    chart.x_range = {static_cast<double>(records.front().step),
                     static_cast<double>(records.back().step)};
  }
  return report::svg_charts(charts);
}

}  // namespace

std::string report_curves_svg(Records records) {
  std::vector<report::CurveChart> charts;
  if (has_metric(records, "reward")) charts.push_back(reward_chart(records));
  charts.push_back(loss_chart(records));
  if (has_metric(records, "rewards/margins")) {
    charts.push_back(pair_chart(records, "margin", "mean margin", "rewards/margins"));
    charts.push_back(pair_chart(records, "accuracy", "share of pairs", "rewards/accuracies"));
  }
  charts.push_back(learning_rate_chart(records));
  charts.push_back(gradient_norm_chart(records));
  charts.push_back(speed_chart(records));
  for (report::CurveChart& chart : charts) {
    for (report::CurveSeries& series : chart.series) series.markers &= series.x.size() <= kMostDots;
  }
  return charts_of_steps(records, std::move(charts));
}

std::string training_curves_svg(std::span<const report::MetricsRecord> records) {
  // The loss says nothing in a run on rewards.
  return charts_of_steps(
      records, {has_metric(records, "reward") ? reward_chart(records) : loss_chart(records),
                learning_rate_chart(records), gradient_norm_chart(records)});
}

}  // namespace strata::apps
