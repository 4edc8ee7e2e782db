// SPDX-License-Identifier: Apache-2.0
#include "report/svg_curve.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>
#include <string>

namespace strata::report {
namespace {

int count(const std::string& text, const std::string& what) {
  int n = 0;
  for (size_t at = 0; (at = text.find(what, at)) != std::string::npos; ++at) ++n;
  return n;
}

TEST(NiceTicks, AreRoundAndInside) {
  EXPECT_EQ(nice_ticks(0, 10, 5, false), (std::vector<double>{0, 2, 4, 6, 8, 10}));
  EXPECT_EQ(nice_ticks(0.3, 1.9, 8, false).size(), 8u);  // 0.4 0.6 ... 1.8
  EXPECT_EQ(nice_ticks(-7, 93, 4, false), (std::vector<double>{0, 50}));
  EXPECT_EQ(nice_ticks(3, 3, 5, false), (std::vector<double>{3}));
}

TEST(NiceTicks, EveryRangeHasSome) {
  for (double low = -1e3; low < 1e3; low += 37.7) {
    for (double span = 1e-6; span < 1e9; span *= 7.3) {
      const std::vector<double> ticks = nice_ticks(low, low + span, 7, false);
      EXPECT_GE(ticks.size(), 2u) << low << " " << span;
      EXPECT_LE(ticks.size(), 9u) << low << " " << span;
      EXPECT_GE(ticks.front(), low - span * 1e-6);
      EXPECT_LE(ticks.back(), low + span * (1 + 1e-6));
    }
  }
}

TEST(NiceTicks, LogAxis) {
  EXPECT_EQ(nice_ticks(1, 100, 5, true), (std::vector<double>{1, 2, 5, 10, 20, 50, 100}));
  EXPECT_GE(nice_ticks(1.1, 1.9, 5, true).size(), 2u);
  EXPECT_LE(nice_ticks(1e-30, 1e30, 5, true).size(), 14u);
}

TEST(Smoothed, EqualsTheWeightedMean) {
  // span 2: weights 1/2^k; by hand: 4; (4/2 + 2) / 1.5; (4/4 + 2/2 + 6) / 1.75.
  const std::vector<double> out = smoothed({4, 2, 6}, 2);
  EXPECT_DOUBLE_EQ(out[0], 4);
  EXPECT_DOUBLE_EQ(out[1], 4 / 1.5);
  EXPECT_DOUBLE_EQ(out[2], 8 / 1.75);
  EXPECT_DOUBLE_EQ(smoothed({4, std::nan(""), 2}, 2)[1], 4);
}

TEST(SvgChart, EscapesAndClosesWhatItOpens) {
  const std::string svg = svg_chart({.title = "a<b & \"c\"",
                                     .x_label = "step",
                                     .y_label = "loss",
                                     .series = {{.name = "<s>", .x = {0, 1, 2}, .y = {3, 2, 1}}}});
  EXPECT_NE(svg.find("a&lt;b &amp; &quot;c&quot;"), std::string::npos);
  EXPECT_EQ(svg.find("<s>"), std::string::npos);
  EXPECT_EQ(count(svg, "<text"), count(svg, "</text>"));
  EXPECT_EQ(count(svg, "<svg"), 1);
  EXPECT_EQ(count(svg, "</svg>"), 1);
}

TEST(SvgChart, PointsLandWhereTheAxesSay) {
  // 800 x 480 with x from 72 to 780: x = 0 is the left edge, x = 10 the right one.
  const std::string svg = svg_chart({.series = {{.name = "s", .x = {0, 10}, .y = {0, 1}}}});
  EXPECT_NE(svg.find("d=\"M72.0 "), std::string::npos);
  EXPECT_NE(svg.find("L780.0 "), std::string::npos);
}

TEST(SvgChart, ALogAxisSaysSo) {
  const CurveSeries line = {.name = "s", .x = {0, 1}, .y = {1, 100}};
  EXPECT_NE(svg_chart({.y_label = "loss", .series = {line}, .log_y = true}).find("loss, log scale"),
            std::string::npos);
  EXPECT_EQ(svg_chart({.y_label = "loss", .series = {line}}).find("log scale"), std::string::npos);
}

TEST(SvgChart, FromZeroItBeginsAtZero) {
  // 480 high with 52 below: the axis is at 428.
  for (const double least : {110.0, 0.0}) {
    const CurveSeries line = {.name = "s", .x = {0, 1}, .y = {least, 130}};
    EXPECT_NE(
        svg_chart({.series = {line}, .from_zero = true}).find("y=\"432.0\" text-anchor=\"end\">0<"),
        std::string::npos)
        << least;
  }
}

TEST(SvgChart, PointsHaveTheirLabelsInside) {
  const CurveSeries points = {
      .name = "s", .x = {0, 5, 10}, .y = {1, 2, 3}, .labels = {"<a>", "", "minimal_offloaded"}};
  const std::string svg = svg_chart({.series = {points}});
  EXPECT_NE(svg.find("text-anchor=\"start\">&lt;a&gt;<"), std::string::npos);
  EXPECT_NE(svg.find("text-anchor=\"end\">minimal_offloaded<"), std::string::npos);
}

TEST(SvgCharts, StandAboveEachOther) {
  const CurveSeries line = {.name = "s", .x = {0, 1}, .y = {1, 2}};
  const std::string svg =
      svg_charts({{.series = {line}, .height = 300}, {.series = {line}, .height = 200}});
  EXPECT_NE(svg.find("height=\"500\""), std::string::npos);
  EXPECT_EQ(count(svg, "translate(0 300)"), 1);
  EXPECT_EQ(count(svg, "<svg"), 1);
}

TEST(SvgChart, HolesBreakTheLine) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const std::string svg =
      svg_chart({.series = {{.name = "s", .x = {0, 1, 2, 3, 4}, .y = {1, 2, nan, 2, 1}}}});
  const size_t path = svg.find("stroke-linejoin");
  ASSERT_NE(path, std::string::npos);
  const std::string drawn = svg.substr(path, svg.find("/>", path) - path);
  EXPECT_EQ(count(drawn, "M"), 2) << drawn;
  EXPECT_EQ(svg.find("nan"), std::string::npos);
}

// Where the only line of a chart goes.
std::string line_of(const CurveSeries& series) {
  const std::string svg = svg_chart({.series = {series}});
  const size_t path = svg.find(" d=\"", svg.find("stroke-linejoin"));
  return path == std::string::npos ? "" : svg.substr(path, svg.find("/>", path) - path);
}

TEST(SvgChart, APointAloneIsADot) {
  EXPECT_EQ(count(line_of({.x = {1}, .y = {1}}), "h0"), 1);
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(count(line_of({.x = {0, 1, 2, 3, 4, 5}, .y = {1, 2, nan, 2, nan, 1}}), "h0"), 2);
  EXPECT_EQ(count(line_of({.x = {0, 1}, .y = {1, 2}}), "h0"), 0);
}

// Of more points than are drawn.
TEST(SvgChart, OneStepOfManyIsSeen) {
  CurveSeries many;
  for (int i = 0; i < 8001; ++i) {
    many.x.push_back(i);
    many.y.push_back(1);
  }
  const std::string flat = line_of(many);
  many.y[4001] = 99;
  const std::string spike = line_of(many);
  EXPECT_EQ(count(flat, "M"), 1);
  std::set<std::string> heights;
  for (size_t at = 0; (at = spike.find(' ', at + 1)) != std::string::npos;)
    heights.insert(spike.substr(at + 1, spike.find_first_of("L\"", at) - at - 1));
  EXPECT_EQ(heights.size(), 2u);
  many.y[4001] = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(count(line_of(many), "M"), 2);
}

TEST(SvgChart, EmptyAndSinglePointsAndHugeSeriesAreLegal) {
  EXPECT_NE(svg_chart({}).find("</svg>"), std::string::npos);
  EXPECT_EQ(svg_chart({.series = {{.name = "s", .x = {1}, .y = {1}}}, .log_y = true}).find("nan"),
            std::string::npos);
  CurveSeries big{.name = "big", .x = {}, .y = {}};
  for (int i = 0; i < 1000000; ++i) {
    big.x.push_back(i);
    big.y.push_back(std::sin(i));
  }
  EXPECT_LT(svg_chart({.series = {big}}).size(), 200000u);
}

}  // namespace
}  // namespace strata::report
