// SPDX-License-Identifier: Apache-2.0
// What the timed runs of a work come to: each figure's median, in words and as JSON.
#pragma once
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/plan/cost.h"

namespace boost::json {
class object;
}

namespace strata::apps {

// One timed run with the limits seen around it.
struct Figures {
  double tokens_per_s = 0.0;
  double share = 0.0;      // of the limit
  double peak = 0.0;       // of matrix products, flop/s
  double bandwidth = 0.0;  // of reads, bytes/s; 0: not probed
};

double median(std::vector<double> values);
Figures median(const std::vector<Figures>& runs);

double peak_rss_gib();

// What a step of so many sequences asks for that trains an adapter of these modules, or without any
// all parameters; with `full` recompute.
double flops_of_work(const model::ModelConfig& config, int64_t sequences, int64_t length,
                     std::span<const model::LoraModuleSpec> modules, bool recompute);

// "812.5 tokens/s{of}, 93.1 % of the limit (120 GFLOP/s probed, avx2, 2 threads)"
std::string words_of(const Figures& figures, std::string_view of, std::string_view arithmetic,
                     int threads);
void put_speed(boost::json::object& line, const Figures& figures);
void put_machine(boost::json::object& line, std::string_view arithmetic, int threads);

}  // namespace strata::apps
