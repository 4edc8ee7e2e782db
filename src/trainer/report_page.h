// SPDX-License-Identifier: Apache-2.0
// The page of a run, --report: what came of it, its curves, samples before and after, what it took,
// and how to go on. One HTML file for light and dark without scripts, which loads nothing. Texts of
// others, such as sampled answers, are escaped. Pure functions but read_samples().
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "report/metrics_log.h"

namespace strata::apps {

// A prompt of --sample with its first answer of the run and its last.
struct ReportSample {
  std::string prompt;
  int64_t first_step = 0, last_step = 0;
  std::string first, last;
};

struct RunReport {
  using Rows = std::vector<std::vector<std::string>>;  // of two cells
  std::string title;
  std::string verdict = {};  // what went wrong, in a sentence; empty: nothing
  Rows outcome = {}, costs = {}, settings = {};
  std::vector<std::pair<std::string, std::string>> commands =
      {};  // what it is for, and the command
  std::vector<ReportSample> samples = {};
};

// The samples of a samples.jsonl in the order of the first evaluation; none where there is no file.
std::vector<ReportSample> read_samples(const std::string& path);

// At most 2 MB, however long the run and its texts. `records`: all of metrics.jsonl.
std::string report_page(const RunReport& run, std::span<const report::MetricsRecord> records);

}  // namespace strata::apps
