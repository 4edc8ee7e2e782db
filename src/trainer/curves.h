// SPDX-License-Identifier: Apache-2.0
// The picture of a run, loss.svg, from the records of its metrics.jsonl: losses, and below them
// what the optimizer did, the learning rate and the gradient norm; that of its page (--report),
// with all else that the records have; and the series that these, and that of a sweep, are drawn
// of. Pure functions.
#pragma once
#include <span>
#include <string>
#include <string_view>

#include "report/metrics_log.h"
#include "report/svg_curve.h"

namespace strata::apps {

// `series` with a point of each record that has a finite value of the metric.
report::CurveSeries series_of(std::span<const report::MetricsRecord> records,
                              std::string_view metric, report::CurveSeries series);
report::CurveSeries smooth(const report::CurveSeries& raw, const std::string& name);

std::string training_curves_svg(std::span<const report::MetricsRecord> records);
std::string report_curves_svg(std::span<const report::MetricsRecord> records);

}  // namespace strata::apps
