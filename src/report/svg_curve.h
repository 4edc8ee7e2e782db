// SPDX-License-Identifier: Apache-2.0
// A line chart as one self-contained SVG text: axes with round ticks, a legend, log axes on
// request. Points that are not finite (or not positive on a log axis) break the line. Pure
// function; same input, same text.
//   write_file_atomic(path, svg_chart({.title = "loss", .series = {{.name = "train", .x = x, .y =
//   y}}}));
#pragma once
#include <string>
#include <vector>

namespace strata::report {

struct CurveSeries {
  std::string name = {};
  std::vector<double> x = {};  // same length as y
  std::vector<double> y = {};
  bool faint = false;                    // raw data behind a smoothed curve
  bool markers = false;                  // a dot a point: few points, such as evaluations
  std::vector<std::string> labels = {};  // next to each point; empty, or as many as points
};

struct CurveChart {
  std::string title = {};
  std::string x_label = {};
  std::string y_label = {};
  std::vector<CurveSeries> series = {};
  std::vector<double> x_range = {};  // least and largest x; empty: those of the points
  bool log_x = false;
  bool log_y = false;      // said behind y_label
  bool from_zero = false;  // y starts at 0, so that heights can be compared
  int width = 800;
  int height = 480;
};

std::string svg_chart(const CurveChart& chart);
// Charts above each other, as wide as the widest.
std::string svg_charts(const std::vector<CurveChart>& charts);

// Round ticks (1, 2 or 5 times a power of ten) that span [low, high] inside it, about `wanted` of
// them; log: powers of ten, with 2 and 5 between where there are few. Ascending, at least one.
std::vector<double> nice_ticks(double low, double high, int wanted, bool log);

// Exponential moving average of y with weight 1 - 1/span on the past, corrected for its start.
std::vector<double> smoothed(const std::vector<double>& y, double span);

}  // namespace strata::report
