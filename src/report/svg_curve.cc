// SPDX-License-Identifier: Apache-2.0
#include "report/svg_curve.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <optional>
#include <set>
#include <span>
#include <string_view>

#include "base/check.h"
#include "report/text_width.h"

namespace strata::report {
namespace {

// Okabe and Ito's palette: told apart by colour-blind readers too.
constexpr std::array<std::string_view, 6> kColors = {"#0072B2", "#D55E00", "#009E73",
                                                     "#CC79A7", "#E69F00", "#56B4E9"};
constexpr int kLeft = 72, kRight = 20, kTop = 44, kBottom = 52;
constexpr size_t kMaxDrawn = 4000;  // points a series, about: three for each half of a pixel

struct Axis {
  double low = 0, high = 1;   // data range
  double begin = 0, end = 1;  // pixels
  bool log = false;

  [[nodiscard]] bool shows(double value) const {
    return std::isfinite(value) && (!log || value > 0);
  }
  [[nodiscard]] double scaled(double value) const { return log ? std::log10(value) : value; }
  [[nodiscard]] double pixel(double value) const {
    const double share = (scaled(value) - scaled(low)) / (scaled(high) - scaled(low));
    return begin + share * (end - begin);
  }
};

std::string xml_escaped(std::string_view text) { return markup_escaped(printable(text)); }

// Air at both ends; without any point a range of its own.
void pad_axis(Axis& axis) {
  if (!(axis.low <= axis.high)) {  // no point at all
    axis.low = axis.log ? 0.1 : 0;
    axis.high = 1;
  }
  if (axis.log) {
    const double margin = axis.low == axis.high ? 2 : std::pow(axis.high / axis.low, 0.04);
    axis.low /= margin;
    axis.high *= margin;
    return;
  }
  double margin = (axis.high - axis.low) * 0.04;
  if (margin == 0) margin = axis.low == 0 ? 1 : std::abs(axis.low) * 0.1;
  axis.low -= margin;
  axis.high += margin;
}

// Where no point is shown, low is above high.
void set_ranges_to_points(const CurveChart& chart, Axis& x, Axis& y) {
  for (Axis* axis : {&x, &y}) {
    axis->low = std::numeric_limits<double>::infinity();
    axis->high = -axis->low;
  }
  for (const CurveSeries& series : chart.series) {
    CHECK(series.x.size() == series.y.size(), series.x.size(), series.y.size());
    for (size_t i = 0; i < series.x.size(); ++i) {
      if (!x.shows(series.x[i]) || !y.shows(series.y[i])) continue;
      x.low = std::min(x.low, series.x[i]);
      x.high = std::max(x.high, series.x[i]);
      y.low = std::min(y.low, series.y[i]);
      y.high = std::max(y.high, series.y[i]);
    }
  }
}

void fit_axes(const CurveChart& chart, Axis& x, Axis& y) {
  set_ranges_to_points(chart, x, y);
  if (!chart.x_range.empty()) {
    CHECK(chart.x_range.size() == 2 && chart.x_range[0] <= chart.x_range[1]);
    x.low = chart.x_range[0];
    x.high = chart.x_range[1];
  }
  // A long run's x axis starts at its first point; y gets air above and below.
  if (!(x.low < x.high) || x.log) pad_axis(x);
  const double least = y.low;
  pad_axis(y);
  if (chart.from_zero && !y.log) y.low = std::min(0.0, least);
}

double step_of(const std::vector<double>& ticks) {
  return ticks.size() > 1 ? ticks[1] - ticks[0] : ticks[0];
}

// Small values are written as 5e-4, as learning rates are.
std::string tick_text(double value, double step, bool log) {
  if (value == 0) return "0";
  if (std::abs(value) < 1 && step < 1e-3) {
    const int power = static_cast<int>(std::floor(std::log10(std::abs(value)) + 1e-9));
    return fmt::format("{:.4g}e{}", value / std::pow(10.0, power), power);
  }
  if (log || std::abs(value) >= 1e6 || std::abs(value) < 1e-4) return fmt::format("{:g}", value);
  const int decimals = std::clamp(static_cast<int>(std::ceil(-std::log10(step) - 1e-9)), 0, 12);
  return fmt::format("{:.{}f}", value, decimals);
}

void draw_y_ticks(std::string& out, const Axis& x, const Axis& y) {
  const std::vector<double> ticks = nice_ticks(y.low, y.high, 7, y.log);
  for (const double tick : ticks) {
    const double at = y.pixel(tick);
    out += fmt::format("<path class=\"grid\" d=\"M{:.1f} {:.1f}H{:.1f}\"/>\n", x.begin, at, x.end);
    out +=
        fmt::format("<text class=\"t\" x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"end\">{}</text>\n",
                    x.begin - 8, at + 4, tick_text(tick, step_of(ticks), y.log));
  }
}

void draw_x_ticks(std::string& out, const Axis& x, const Axis& y) {
  const std::vector<double> ticks = nice_ticks(x.low, x.high, 8, x.log);
  for (const double tick : ticks) {
    const double at = x.pixel(tick);
    out += fmt::format("<path class=\"axis\" d=\"M{:.1f} {:.1f}v5\"/>\n", at, y.begin);
    out += fmt::format(
        "<text class=\"t\" x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"middle\">{}</text>\n", at,
        y.begin + 19, tick_text(tick, step_of(ticks), x.log));
  }
}

void draw_axis_labels(std::string& out, const CurveChart& chart, const Axis& x, const Axis& y) {
  out +=
      fmt::format("<text class=\"l\" x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"middle\">{}</text>\n",
                  (x.begin + x.end) / 2, y.begin + 40, xml_escaped(chart.x_label));
  out += fmt::format(
      "<text class=\"l\" transform=\"translate(18 {:.1f}) rotate(-90)\" "
      "text-anchor=\"middle\">{}</text>\n",
      (y.begin + y.end) / 2,
      xml_escaped(chart.log_y ? chart.y_label + ", log scale" : chart.y_label));
}

void draw_x_line(std::string& out, const Axis& x, const Axis& y) {
  out +=
      fmt::format("<path class=\"axis\" d=\"M{:.1f} {:.1f}H{:.1f}\"/>\n", x.begin, y.begin, x.end);
}

void draw_title(std::string& out, const CurveChart& chart) {
  out += fmt::format(
      "<text x=\"{}\" y=\"26\" font-size=\"16\" font-weight=\"bold\" fill=\"#222\">{}</text>\n",
      kLeft, xml_escaped(chart.title));
}

void draw_axes(std::string& out, const CurveChart& chart, const Axis& x, const Axis& y) {
  draw_y_ticks(out, x, y);
  draw_x_ticks(out, x, y);
  draw_x_line(out, x, y);
  draw_axis_labels(out, chart, x, y);
}

bool is_shown(const CurveSeries& series, size_t i, const Axis& x, const Axis& y) {
  return x.shows(series.x[i]) && y.shows(series.y[i]);
}

// The lowest, the highest and a hole among the points [begin, end).
std::set<size_t> extremes_and_hole_of(const CurveSeries& series, size_t begin, size_t end,
                                      const Axis& x, const Axis& y) {
  std::optional<size_t> low, high, hole;
  for (size_t i = begin; i < end; ++i) {
    if (!is_shown(series, i, x, y)) {
      hole = i;
      continue;
    }
    if (!low || series.y[i] < series.y[*low]) low = i;
    if (!high || series.y[i] > series.y[*high]) high = i;
  }
  std::set<size_t> extremes;
  for (const std::optional<size_t> at : {low, high, hole})
    if (at) extremes.insert(*at);
  return extremes;
}

// In their order: of many points the ends, and of each stretch its lowest, its highest and a hole.
std::vector<size_t> points_to_draw(const CurveSeries& series, const Axis& x, const Axis& y) {
  const size_t count = series.x.size();
  const size_t stride = count <= kMaxDrawn ? 1 : (3 * count + kMaxDrawn - 1) / kMaxDrawn;
  std::vector<size_t> out;
  for (size_t begin = 0; begin < count; begin += stride) {
    const size_t end = std::min(count, begin + stride);
    std::set<size_t> of_stretch = extremes_and_hole_of(series, begin, end, x, y);
    if (begin == 0) of_stretch.insert(begin);
    if (end == count) of_stretch.insert(end - 1);
    out.insert(out.end(), of_stretch.begin(), of_stretch.end());
  }
  return out;
}

// A point alone between two holes is a dot.
std::string line_path(const CurveSeries& series, std::span<const size_t> points, const Axis& x,
                      const Axis& y) {
  std::string path;
  size_t length = 0;  // points of the line since the last hole
  const auto end_line = [&] {
    if (length == 1) path += "h0";
    length = 0;
  };
  for (const size_t at : points) {
    if (!is_shown(series, at, x, y)) {
      end_line();
      continue;
    }
    path += fmt::format("{}{:.1f} {:.1f}", length++ > 0 ? "L" : "M", x.pixel(series.x[at]),
                        y.pixel(series.y[at]));
  }
  end_line();
  return path;
}

void draw_markers(std::string& out, const CurveSeries& series, std::string_view color,
                  std::span<const size_t> points, const Axis& x, const Axis& y) {
  for (const size_t at : points) {
    if (!is_shown(series, at, x, y)) continue;
    out += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3\" fill=\"{}\"/>\n",
                       x.pixel(series.x[at]), y.pixel(series.y[at]), color);
  }
}

void draw_series(std::string& out, const CurveSeries& series, std::string_view color, const Axis& x,
                 const Axis& y) {
  const std::vector<size_t> points = points_to_draw(series, x, y);
  const std::string path = line_path(series, points, x, y);
  if (path.empty()) return;
  out += fmt::format(
      "<path fill=\"none\" stroke=\"{}\" stroke-width=\"{}\" stroke-opacity=\"{}\" "
      "stroke-linejoin=\"round\" stroke-linecap=\"round\" d=\"{}\"/>\n",
      color, series.faint ? "1" : "1.8", series.faint ? "0.35" : "1", path);
  if (series.markers) draw_markers(out, series, color, points, x, y);
}

// To the right of its point, or to the left where the plot ends.
void draw_labels(std::string& out, const CurveSeries& series, const Axis& x, const Axis& y) {
  if (series.labels.empty()) return;
  CHECK(series.labels.size() == series.x.size(), series.labels.size(), series.x.size());
  for (size_t i = 0; i < series.x.size(); ++i) {
    if (series.labels[i].empty() || !x.shows(series.x[i]) || !y.shows(series.y[i])) continue;
    const double at = x.pixel(series.x[i]);
    const bool is_left = at + 7 + 6.2 * text_width(series.labels[i]) > x.end;
    out += fmt::format("<text class=\"t\" x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\">{}</text>\n",
                       is_left ? at - 7 : at + 7, y.pixel(series.y[i]) - 5,
                       is_left ? "end" : "start", xml_escaped(series.labels[i]));
  }
}

// Names right-aligned above the plot, on the title's line.
void draw_legend(std::string& out, const CurveChart& chart) {
  double right = chart.width - kRight;
  for (size_t i = chart.series.size(); i-- > 0;) {
    const CurveSeries& series = chart.series[i];
    if (series.name.empty()) continue;
    out += fmt::format("<text class=\"l\" x=\"{:.1f}\" y=\"26\" text-anchor=\"end\">{}</text>\n",
                       right, xml_escaped(series.name));
    right -= 7.6 * text_width(series.name) + 10;
    out += fmt::format(
        "<path stroke=\"{}\" stroke-width=\"{}\" stroke-opacity=\"{}\" d=\"M{:.1f} 22h-18\"/>\n",
        kColors[i % kColors.size()], series.faint ? "1" : "2.5", series.faint ? "0.5" : "1", right);
    right -= 18 + 14;
  }
}

std::vector<double> log_ticks(double low, double high) {
  std::vector<double> ticks;
  const int first = static_cast<int>(std::floor(std::log10(low)));
  const int last = static_cast<int>(std::ceil(std::log10(high)));
  const int skip = std::max(1, (last - first) / 10);
  const bool dense = last - first <= 3;
  for (int power = first; power <= last; power += skip) {
    for (const double digit : {1.0, 2.0, 5.0}) {
      const double tick = digit * std::pow(10.0, power);
      if ((digit == 1 || dense) && tick >= low && tick <= high) ticks.push_back(tick);
    }
  }
  return ticks;
}

// 1, 2 or 5 times a power of ten.
double round_up_to_nice(double step) {
  const double power = std::pow(10.0, std::floor(std::log10(step)));
  for (const double digit : {1.0, 2.0, 5.0}) {
    if (digit * power >= step * 0.999999) return digit * power;
  }
  return 10 * power;
}

std::vector<double> linear_ticks(double low, double high, int wanted) {
  const double step = round_up_to_nice((high - low) / wanted);
  const auto first = static_cast<int64_t>(std::ceil(low / step - 1e-9));
  const auto last = static_cast<int64_t>(std::floor(high / step + 1e-9));
  std::vector<double> ticks;
  for (int64_t i = first; i <= last; ++i) ticks.push_back(static_cast<double>(i) * step);
  if (ticks.empty()) ticks.push_back(low);
  return ticks;
}

}  // namespace

std::vector<double> nice_ticks(double low, double high, int wanted, bool log) {
  CHECK(low <= high && wanted >= 1, low, high, wanted);
  if (log) {
    std::vector<double> ticks = log_ticks(low, high);
    if (ticks.size() >= 3) return ticks;  // less than a decade: as on a linear axis
  }
  if (low == high) return {low};
  return linear_ticks(low, high, wanted);
}

std::vector<double> smoothed(const std::vector<double>& y, double span) {
  CHECK(span >= 1, span);
  const double keep = 1 - 1 / span;
  std::vector<double> out;
  double sum = 0, weight = 0;
  for (const double value : y) {
    if (std::isfinite(value)) {
      sum = keep * sum + value;
      weight = keep * weight + 1;
    }
    out.push_back(weight > 0 ? sum / weight : value);
  }
  return out;
}

namespace {

std::string svg_head(int width, int height) {
  return fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" viewBox=\"0 0 {0} "
      "{1}\" "
      "font-family=\"Helvetica, Arial, sans-serif\" font-size=\"13\">\n"
      "<style>.grid{{stroke:#e4e4e4}}.axis{{stroke:#888;fill:none}}.t{{fill:#666;font-size:12px}}"
      ".l{{fill:#333}}</style>\n"
      "<rect width=\"{0}\" height=\"{1}\" fill=\"#fff\"/>\n",
      width, height);
}

// At (0, 0), as an element of an <svg>.
std::string chart_body(const CurveChart& chart) {
  CHECK(chart.width > kLeft + kRight && chart.height > kTop + kBottom, chart.width, chart.height);
  Axis x{.begin = kLeft, .end = double(chart.width - kRight), .log = chart.log_x};
  Axis y{.begin = double(chart.height - kBottom), .end = kTop, .log = chart.log_y};
  fit_axes(chart, x, y);
  std::string out;
  draw_title(out, chart);
  draw_axes(out, chart, x, y);
  for (size_t i = 0; i < chart.series.size(); ++i) {
    draw_series(out, chart.series[i], kColors[i % kColors.size()], x, y);
    draw_labels(out, chart.series[i], x, y);
  }
  draw_legend(out, chart);
  return out;
}

}  // namespace

std::string svg_chart(const CurveChart& chart) { return svg_charts({chart}); }

std::string svg_charts(const std::vector<CurveChart>& charts) {
  int width = 0, height = 0;
  for (const CurveChart& chart : charts) {
    width = std::max(width, chart.width);
    height += chart.height;
  }
  std::string out = svg_head(width, height);
  int top = 0;
  for (const CurveChart& chart : charts) {
    const std::string body = chart_body(chart);
    out += top == 0 ? body : fmt::format("<g transform=\"translate(0 {})\">\n{}</g>\n", top, body);
    top += chart.height;
  }
  return out + "</svg>\n";
}

}  // namespace strata::report
