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
  double predicted = 0.0;  // the same by engine/plan/cost.h at these limits; 0: not predicted
  double share = 0.0;      // of the limit
  double peak = 0.0;       // of matrix products, flop/s
  double bandwidth = 0.0;  // of reads, bytes/s; 0: not probed
  double drift = 0.0;      // of the predicted time, from limits before the run to those behind it
};

double median(std::vector<double> values);
// How far two times are apart, as a share.
double apart(double before, double after);
Figures median(const std::vector<Figures>& runs);

engine::MachineLimits median(const std::vector<engine::MachineLimits>& seen);
engine::MachineLimits mean(const engine::MachineLimits& a, const engine::MachineLimits& b);

// What a step of so many sequences asks for that trains an adapter of these modules, or without any
// all parameters; with `full` recompute.
double training_step_flops(const model::ModelConfig& config, int64_t sequences, int64_t length,
                           std::span<const model::LoraModuleSpec> modules, bool recompute);

// "812.5 tokens/s{of}, 93.1 % of the limit (120 GFLOP/s probed, avx2, 2 threads)"
std::string figures_text(const Figures& figures, std::string_view of, std::string_view arithmetic,
                         int threads);
void add_speed_fields(boost::json::object& line, const Figures& figures);
// The runs that those are medians of.
void add_runs_field(boost::json::object& line, const std::vector<Figures>& runs);
void add_machine_fields(boost::json::object& line, std::string_view arithmetic, int threads);

}  // namespace strata::apps
