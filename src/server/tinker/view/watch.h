// SPDX-License-Identifier: Apache-2.0
// Watch: what the server shows of itself, fed as things happen: metrics, throughput of the last
// minutes and the loss curves of runs. Kept in memory only, bounded; of ended runs the last ones
// stay. I/O thread only.
//   watch.note_run_started(...);  watch.record_outcome(...);  watch.record_stats(...);  page reads
//   the rest
#pragma once
#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "api/command.h"
#include "api/result.h"
#include "server/tinker/view/loss_curve.h"
#include "server/tinker/view/metrics.h"

namespace strata::server {

// What is known of one accepted command, until it is settled.
struct WatchedCommand {
  const char* operation = "";
  std::string run;
  double begin = 0.0;        // now_seconds()
  double loss_weight = 0.0;  // what to divide its loss by; 0: none to show
  bool evaluates = false;    // forward alone
  // When the newest token of each row of a sample came, now_seconds(); 0 of a row without any.
  std::vector<double> newest_token = {};
};

// What is worth remembering of `command`.
WatchedCommand watched_command(const api::Command& command, double now);

struct WatchedRun {
  std::string tenant = {};
  std::string base_name = {};
  std::string name = {};  // as its client calls it; may be empty
  int64_t rank = 0;
  double begin = 0.0;  // seconds since 1970
  bool live = true;
  int64_t steps = 0;
  std::string in_flight = {};  // how far its long request is, in words
  LossCurve curve = LossCurve();
  LossCurve evaluations = LossCurve();  // of forward alone, by the step behind them
};

class Watch {
 public:
  struct Rate {
    double train = 0.0, sample = 0.0;  // tokens/s
  };

  // Also one that ended before it had begun, and is made once more.
  void note_run_started(const std::string& id, WatchedRun run);
  void note_run_ended(const std::string& id);
  void note_progress(const WatchedCommand& command, const std::string& how_far);
  // So many more tokens of a sample's row.
  void record_tokens(WatchedCommand& command, int64_t row, int64_t count, double now);
  void record_outcome(const WatchedCommand& command, const api::RequestId& request,
                      const api::Outcome& outcome, double now);
  // About ten times a second; keeps one reading a second.
  void record_stats(const EngineStats& stats, double now);

  [[nodiscard]] Metrics& metrics() { return metrics_; }
  [[nodiscard]] const std::map<std::string, WatchedRun>& runs() const { return runs_; }
  [[nodiscard]] Rate rate() const;  // of the last ten seconds
  [[nodiscard]] const std::deque<Rate>& history() const { return history_; }  // one a second

 private:
  struct Reading {
    double now = 0.0;
    int64_t trained = 0, sampled = 0;
  };
  static Rate rate_between(const Reading& a, const Reading& b);

  Metrics metrics_;
  std::map<std::string, WatchedRun> runs_;
  std::deque<std::string> ended_;  // oldest first
  std::deque<Reading> readings_;   // one a second, the last eleven
  std::deque<Rate> history_;
};

}  // namespace strata::server
