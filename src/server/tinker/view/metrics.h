// SPDX-License-Identifier: Apache-2.0
// Metrics: counters and latency histograms of the server, and their text for Prometheus (exposition
// format 0.0.4). No label names a tenant, a run or a session: only routes, operations, outcomes and
// uses of memory, so the number of series is bounded. I/O thread only.
#pragma once
#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/http/message.h"
#include "server/tinker/audit.h"
#include "server/tinker/budget.h"
#include "server/tinker/usage.h"
#include "server/tinker/view/engine_stats.h"
#include "structured/grammar_store.h"

namespace strata::server {

class Histogram {
 public:
  // Upper bounds in seconds; the last bucket is everything.
  static constexpr std::array<double, 14> kBounds = {
      0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 30.0, 120.0};
  void add(double seconds);
  // name_bucket, name_sum and name_count with `labels` ("a=\"b\""), or without where it is empty.
  void append_to(std::string& out, std::string_view name, std::string_view labels) const;

 private:
  std::array<int64_t, kBounds.size() + 1> counts_ = {};
  double sum_ = 0.0;
};

// What the server itself counts right now.
struct ServerGauges {
  int64_t pending = 0;  // futures without a result
  int64_t parked = 0;   // polls that wait
  int64_t sessions = 0;
  int64_t models = 0;
  double train_rate = 0.0, sample_rate = 0.0;  // tokens/s
  double loop_lag = 0.0, tick_age = 0.0;       // s, of the I/O thread
  std::vector<Budget::Row> budget = {};
  structured::GrammarStore::Counts grammars = {};
  AuditLog::Counts audit = {};
};

class Metrics {
 public:
  // A response; `route` is the route's pattern.
  void record_exchange(std::string_view route, int status, double seconds);
  // A command that has its result: outcome is ok, user or server; seconds from its acceptance.
  void record_command(std::string_view operation, std::string_view outcome, double seconds);
  // The first token of a sample, by its seconds from the sample's acceptance; and every later token
  // of a row, by its seconds from the one before.
  void record_first_token(double seconds) { first_token_.add(seconds); }
  void record_token_gap(double seconds) { token_gap_.add(seconds); }
  // A step of the server's own work that failed and will be tried again.
  void count_fault(std::string_view step);

  [[nodiscard]] std::string render_prometheus(const EngineStats& engine, const ServerGauges& server,
                                              const Usage& usage) const;

 private:
  void append_faults(std::string& out) const;
  void append_exchanges(std::string& out) const;
  void append_commands(std::string& out) const;
  void append_token_latencies(std::string& out) const;

  std::map<std::string, int64_t, std::less<>> faults_;  // by step
  std::map<std::pair<std::string, int>, int64_t, std::less<>> exchanges_;
  std::map<std::string, Histogram, std::less<>> exchange_seconds_;  // by route
  std::map<std::pair<std::string, std::string>, Histogram, std::less<>> command_seconds_;
  Histogram first_token_, token_gap_;
};

// The text of metrics as the response to a scrape.
Response prometheus_response(std::string text);
// Replaces the value of a metric without labels that is in the text.
void set_gauge(std::string& text, std::string_view name, double value);

}  // namespace strata::server
