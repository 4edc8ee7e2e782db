// SPDX-License-Identifier: Apache-2.0
#include "server/tinker/view/metrics.h"

#include <fmt/format.h>

#include <iterator>

#include "base/process_memory.h"

namespace strata::server {
namespace {

void append_head(std::string& out, const char* name, const char* type, const char* help) {
  fmt::format_to(std::back_inserter(out), "# HELP {} {}\n# TYPE {} {}\n", name, help, name, type);
}

void append_metric(std::string& out, const char* name, const char* type, const char* help,
                   double value) {
  append_head(out, name, type, help);
  fmt::format_to(std::back_inserter(out), "{} {}\n", name, value);
}

struct Labelled {
  const char* label;
  double value;
};

void append_metric(std::string& out, const char* name, const char* type, const char* help,
                   const char* key, const std::vector<Labelled>& rows) {
  append_head(out, name, type, help);
  for (const Labelled& row : rows) {
    fmt::format_to(std::back_inserter(out), "{}{{{}=\"{}\"}} {}\n", name, key, row.label,
                   row.value);
  }
}

double d(int64_t value) { return static_cast<double>(value); }

void append_memory(std::string& out, const EngineStats& engine,
                   const std::vector<Budget::Row>& budget) {
  std::vector<Labelled> used = {{"weights", d(engine.weights)},
                                {"passes", d(engine.passes)},
                                {"adapters", d(engine.adapter_bytes)},
                                {"snapshots", d(engine.snapshot_bytes)},
                                {"kv", d(engine.kv_bytes)},
                                {"states", d(engine.state_bytes)}};
  std::vector<Labelled> plan = {{"weights", d(engine.weights)},
                                {"passes", d(engine.passes)},
                                {"adapters", d(engine.adapter_limit)},
                                {"snapshots", d(engine.snapshot_limit)},
                                {"kv", d(engine.kv_limit)},
                                {"states", d(engine.state_limit)}};
  for (const Budget::Row& row : budget) {
    used.push_back({row.name, d(row.held)});
    plan.push_back({row.name, d(row.limit)});
  }
  used.push_back({"resident", d(read_resident_bytes())});
  plan.push_back({"all", d(engine.budget)});
  append_metric(out, "strata_memory_bytes", "gauge", "Memory in use.", "use", used);
  append_metric(out, "strata_memory_plan_bytes", "gauge", "What the plan allows.", "use", plan);
}

void append_usage(std::string& out, const Usage& usage) {
  append_head(out, "strata_usage_total", "counter", "What keys have used, over restarts too.");
  for (size_t i = 0; i < kNumCountedKinds; ++i) {
    const auto kind = static_cast<UsageKind>(i);
    fmt::format_to(std::back_inserter(out), "strata_usage_total{{kind=\"{}\"}} {}\n",
                   usage_kind_name(kind), usage.total(kind));
  }
  append_head(out, "strata_limited_total", "counter", "Refusals by --rate and --quota.");
  for (size_t i = 0; i < kNumUsageKinds; ++i) {
    const std::string_view kind = usage_kind_name(static_cast<UsageKind>(i));
    fmt::format_to(std::back_inserter(out),
                   "strata_limited_total{{limit=\"rate\",kind=\"{0}\"}} {1}\n"
                   "strata_limited_total{{limit=\"quota\",kind=\"{0}\"}} {2}\n",
                   kind, usage.refused()[i].by_rate, usage.refused()[i].by_quota);
  }
}

// What compiling schemas came to.
void append_grammars(std::string& out, const structured::GrammarStore::Counts& counts) {
  append_metric(out, "strata_schema_compiles_total", "counter", "Schemas that were compiled.",
                d(counts.compiles));
  append_metric(out, "strata_schema_hits_total", "counter", "Schemas that were compiled before.",
                d(counts.hits));
  append_metric(out, "strata_schema_compile_seconds_total", "counter",
                "Time that compiling schemas took.", counts.seconds);
  append_head(out, "strata_schema_refusals_total", "counter",
              "Schemas that were not compiled, by what was the matter.");
  for (size_t i = 0; i < structured::kGrammarFaults.size(); ++i)
    fmt::format_to(std::back_inserter(out), "strata_schema_refusals_total{{reason=\"{}\"}} {}\n",
                   structured::kGrammarFaults[i], counts.faults[i]);
}

// What was done, how fast, and what waits.
void append_throughput_and_queues(std::string& out, const EngineStats& engine,
                                  const ServerGauges& server) {
  append_metric(out, "strata_tokens_total", "counter", "Tokens that went through the engines.",
                "kind",
                {{"train", d(engine.trained_tokens)}, {"sample", d(engine.sampled_tokens)}});
  append_metric(out, "strata_tokens_per_second", "gauge",
                "Tokens a second, over the last ten seconds.", "kind",
                {{"train", server.train_rate}, {"sample", server.sample_rate}});
  append_metric(out, "strata_drafts_total", "counter",
                "Drafts that a sampling step read, and of these the ones that were sampled.",
                "outcome",
                {{"accepted", d(engine.drafts_accepted)},
                 {"rejected", d(engine.drafts_read - engine.drafts_accepted)}});
  append_metric(
      out, "strata_prompt_tokens_total", "counter",
      "Tokens of prompts that looked for a known prefix: cached ones were not read again.", "kind",
      {{"cached", d(engine.cached_tokens)},
       {"read", d(engine.prompt_tokens - engine.cached_tokens)}});
  append_metric(out, "strata_train_passes_total", "counter", "Training passes.",
                d(engine.train_passes));
  append_metric(out, "strata_batch_tokens", "gauge", "Tokens of the last training pass.",
                d(engine.batch_tokens));
  append_metric(out, "strata_running_samples", "gauge", "Rows in the sampling batch.",
                d(engine.running_samples));
  append_metric(
      out, "strata_queue_depth", "gauge",
      "What waits: training operations (held: behind a missing number), samples, futures without "
      "a result, parked polls.",
      "queue",
      {{"training", d(engine.queued_training)},
       {"training_held", d(engine.held_training)},
       {"samples", d(engine.queued_samples)},
       {"futures", d(server.pending)},
       {"polls", d(server.parked)}});
  append_metric(out, "strata_queued_bytes", "gauge", "Bytes of queued training operations.",
                d(engine.queued_bytes));
}

// What is there now, and how long threads take.
void append_gauges(std::string& out, const EngineStats& engine, const ServerGauges& server) {
  append_metric(out, "strata_sessions", "gauge", "Sessions alive.", d(server.sessions));
  append_metric(out, "strata_models", "gauge", "Training models alive.", d(server.models));
  append_metric(out, "strata_adapters", "gauge", "Adapter slots taken.", d(engine.adapters));
  append_metric(
      out, "strata_loop_lag_seconds", "gauge",
      "How late the I/O thread was for its tick, the most of the last ten to twenty seconds.",
      server.loop_lag);
  append_metric(out, "strata_tick_age_seconds", "gauge",
                "Since the last tick of the I/O thread began.", server.tick_age);
  append_metric(out, "strata_engine_turn_seconds", "gauge",
                "How long the engine's turn has been running; 0: it waits.", engine.turn_seconds);
}

}  // namespace

void Histogram::add(double seconds) {
  size_t i = 0;
  while (i < kBounds.size() && seconds > kBounds[i]) ++i;
  ++counts_[i];
  sum_ += seconds;
}

void Histogram::append_to(std::string& out, std::string_view name, std::string_view labels) const {
  const std::string in_buckets = labels.empty() ? "" : fmt::format("{},", labels);
  const std::string alone = labels.empty() ? "" : fmt::format("{{{}}}", labels);
  int64_t below = 0;
  for (size_t i = 0; i < counts_.size(); ++i) {
    below += counts_[i];
    const std::string bound = i < kBounds.size() ? fmt::format("{}", kBounds[i]) : "+Inf";
    fmt::format_to(std::back_inserter(out), "{}_bucket{{{}le=\"{}\"}} {}\n", name, in_buckets,
                   bound, below);
  }
  fmt::format_to(std::back_inserter(out), "{0}_sum{1} {2}\n{0}_count{1} {3}\n", name, alone, sum_,
                 below);
}

void Metrics::record_exchange(std::string_view route, int status, double seconds) {
  ++exchanges_[{std::string(route), status}];
  const auto found = exchange_seconds_.find(route);
  (found != exchange_seconds_.end() ? found->second : exchange_seconds_[std::string(route)])
      .add(seconds);
}

void Metrics::record_command(std::string_view operation, std::string_view outcome, double seconds) {
  command_seconds_[{std::string(operation), std::string(outcome)}].add(seconds);
}

void Metrics::count_fault(std::string_view step) { ++faults_[std::string(step)]; }

std::string Metrics::render_prometheus(const EngineStats& engine, const ServerGauges& server,
                                       const Usage& usage) const {
  std::string out;
  append_throughput_and_queues(out, engine, server);
  append_gauges(out, engine, server);
  append_faults(out);
  append_memory(out, engine, server.budget);
  append_usage(out, usage);
  append_metric(out, "strata_audit_lines_total", "counter", "Lines of the audit log.", "outcome",
                {{"written", d(server.audit.written)}, {"dropped", d(server.audit.dropped)}});
  append_grammars(out, server.grammars);
  append_exchanges(out);
  append_commands(out);
  append_token_latencies(out);
  return out;
}

void Metrics::append_faults(std::string& out) const {
  append_head(out, "strata_faults_total", "counter", "Steps of the server's own work that failed.");
  for (const auto& [step, count] : faults_) {
    fmt::format_to(std::back_inserter(out), "strata_faults_total{{step=\"{}\"}} {}\n", step, count);
  }
}

void Metrics::append_exchanges(std::string& out) const {
  append_head(out, "strata_http_requests_total", "counter", "Responses, by route and status.");
  for (const auto& [key, count] : exchanges_) {
    fmt::format_to(std::back_inserter(out),
                   "strata_http_requests_total{{route=\"{}\",status=\"{}\"}} {}\n", key.first,
                   key.second, count);
  }
  append_head(out, "strata_http_request_seconds", "histogram", "From the request to its response.");
  for (const auto& [route, histogram] : exchange_seconds_) {
    histogram.append_to(out, "strata_http_request_seconds", fmt::format("route=\"{}\"", route));
  }
}

void Metrics::append_commands(std::string& out) const {
  append_head(out, "strata_command_seconds", "histogram",
              "From a command's acceptance to its result.");
  for (const auto& [key, histogram] : command_seconds_) {
    histogram.append_to(out, "strata_command_seconds",
                        fmt::format("operation=\"{}\",outcome=\"{}\"", key.first, key.second));
  }
}

// Under the names that vLLM gives them.
void Metrics::append_token_latencies(std::string& out) const {
  append_head(out, "strata_time_to_first_token_seconds", "histogram",
              "From a sample's acceptance to its first token.");
  first_token_.append_to(out, "strata_time_to_first_token_seconds", "");
  append_head(out, "strata_inter_token_latency_seconds", "histogram",
              "Between two tokens of one answer.");
  token_gap_.append_to(out, "strata_inter_token_latency_seconds", "");
}

void set_gauge(std::string& text, std::string_view name, double value) {
  const size_t at = text.find(fmt::format("\n{} ", name)) + 1;
  text.replace(at, text.find('\n', at) - at, fmt::format("{} {}", name, value));
}

Response prometheus_response(std::string text) {
  Response response;
  response.content_type = "text/plain; version=0.0.4; charset=utf-8";
  response.body = std::move(text);
  return response;
}

}  // namespace strata::server
