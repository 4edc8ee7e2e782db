// SPDX-License-Identifier: Apache-2.0
#include "apps/bench/figures.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <boost/json.hpp>
#include <utility>

namespace strata::apps {

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

Figures median(const std::vector<Figures>& runs) {
  const auto of = [&](double Figures::* member) {
    std::vector<double> values;
    for (const Figures& run : runs) values.push_back(run.*member);
    return median(std::move(values));
  };
  return {.tokens_per_s = of(&Figures::tokens_per_s),
          .share = of(&Figures::share),
          .peak = of(&Figures::peak),
          .bandwidth = of(&Figures::bandwidth)};
}

double peak_rss_gib() {
  struct rusage usage;
  ::getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) / (1024.0 * 1024.0);
}

double flops_of_work(const model::ModelConfig& config, int64_t sequences, int64_t length,
                     std::span<const model::LoraModuleSpec> modules, bool recompute) {
  const std::vector<int64_t> lengths(static_cast<size_t>(sequences), length);
  const engine::StepShape shape = {.lengths = lengths, .modules = modules};
  return engine::step_flops(config, shape) +
         (recompute ? engine::forward_flops(config, shape) : 0.0);
}

std::string words_of(const Figures& figures, std::string_view of, std::string_view arithmetic,
                     int threads) {
  const std::string reads =
      figures.bandwidth > 0 ? fmt::format(", {:.1f} GB/s", figures.bandwidth / 1e9) : "";
  return fmt::format(
      "{:.1f} tokens/s{}, {:.1f} % of the limit ({:.0f} GFLOP/s{} probed, {}, {} threads)",
      figures.tokens_per_s, of, 100.0 * figures.share, figures.peak / 1e9, reads, arithmetic,
      threads);
}

void put_speed(boost::json::object& line, const Figures& figures) {
  line["tokens_per_s"] = figures.tokens_per_s;
  line["share_of_limit"] = figures.share;
  line["matrix_peak_gflops"] = figures.peak / 1e9;
}

void put_machine(boost::json::object& line, std::string_view arithmetic, int threads) {
  line["cpu_path"] = std::string(arithmetic);
  line["threads"] = threads;
  line["peak_rss_gib"] = peak_rss_gib();
}

}  // namespace strata::apps
