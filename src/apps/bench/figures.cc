// SPDX-License-Identifier: Apache-2.0
#include "apps/bench/figures.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <cmath>
#include <string>
#include <utility>

#include "apps/bench/process.h"
#include "setup/backend.h"

namespace strata::apps {

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

double apart(double before, double after) { return std::abs(after / before - 1.0); }

Figures median(const std::vector<Figures>& runs) {
  const auto of = [&](double Figures::* member) {
    std::vector<double> values;
    for (const Figures& run : runs) values.push_back(run.*member);
    return median(std::move(values));
  };
  return {.tokens_per_s = of(&Figures::tokens_per_s),
          .predicted = of(&Figures::predicted),
          .share = of(&Figures::share),
          .peak = of(&Figures::peak),
          .bandwidth = of(&Figures::bandwidth)};
}

engine::MachineLimits median(const std::vector<engine::MachineLimits>& seen) {
  const auto of = [&](double engine::MachineLimits::* limit) {
    std::vector<double> values;
    for (const engine::MachineLimits& limits : seen) values.push_back(limits.*limit);
    return median(std::move(values));
  };
  return {.flops = of(&engine::MachineLimits::flops),
          .f32_flops = of(&engine::MachineLimits::f32_flops),
          .bytes = of(&engine::MachineLimits::bytes)};
}

engine::MachineLimits mean(const engine::MachineLimits& a, const engine::MachineLimits& b) {
  return {.flops = (a.flops + b.flops) / 2.0,
          .f32_flops = (a.f32_flops + b.f32_flops) / 2.0,
          .bytes = (a.bytes + b.bytes) / 2.0};
}

double training_step_flops(const model::ModelConfig& config, int64_t sequences, int64_t length,
                           std::span<const model::LoraModuleSpec> modules, bool recompute) {
  const std::vector<int64_t> lengths(static_cast<size_t>(sequences), length);
  const engine::StepShape shape = {.lengths = lengths, .modules = modules};
  return engine::step_flops(config, shape) +
         (recompute ? engine::forward_flops(config, shape) : 0.0);
}

std::string figures_text(const Figures& figures, std::string_view of, std::string_view arithmetic,
                         int threads) {
  const std::string reads =
      figures.bandwidth > 0 ? fmt::format(", {:.1f} GB/s", figures.bandwidth / 1e9) : "";
  const std::string predicted =
      figures.predicted > 0 ? fmt::format(" ({:.1f} predicted)", figures.predicted) : "";
  return fmt::format(
      "{:.1f} tokens/s{}{}, {:.1f} % of the limit ({:.0f} GFLOP/s{} probed, {}, {} threads)",
      figures.tokens_per_s, of, predicted, 100.0 * figures.share, figures.peak / 1e9, reads,
      arithmetic, threads);
}

void add_speed_fields(boost::json::object& line, const Figures& figures) {
  line["tokens_per_s"] = figures.tokens_per_s;
  if (figures.predicted > 0) line["predicted_tokens_per_s"] = figures.predicted;
  line["share_of_limit"] = figures.share;
  line["matrix_peak_gflops"] = figures.peak / 1e9;
}

void add_runs_field(boost::json::object& line, const std::vector<Figures>& runs) {
  boost::json::array& list = line["runs"].emplace_array();
  for (const Figures& run : runs) {
    boost::json::object& one = list.emplace_back(boost::json::object{}).as_object();
    one["tokens_per_s"] = run.tokens_per_s;
    if (run.predicted == 0) continue;
    one["predicted_tokens_per_s"] = run.predicted;
    one["predicted_drift"] = run.drift;
  }
}

void add_machine_fields(boost::json::object& line, std::string_view arithmetic, int threads) {
  line["cpu_path"] = std::string(arithmetic);
  line["cpu_path_text"] = describe_arithmetic_in_use();
  line["threads"] = threads;
  line["peak_rss_gib"] = peak_rss_gib();
}

}  // namespace strata::apps
