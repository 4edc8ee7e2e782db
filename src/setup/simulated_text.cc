// SPDX-License-Identifier: Apache-2.0
#include "setup/simulated_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <deque>

#include "base/files.h"
#include "report/format.h"
#include "report/table.h"
#include "report/trace_file.h"
#include "setup/simulated_step.h"

namespace strata::apps {
namespace {

std::string span_name(const schedule::SimulatedSpan& span) {
  switch (span.kind) {
    case schedule::SimulatedSpan::Kind::kAction:
      return to_string(span.action);
    case schedule::SimulatedSpan::Kind::kStep:
      return "optimizer step";
    case schedule::SimulatedSpan::Kind::kExchange:
      return "gather";
  }
  return "";
}

// Spans borrow what is added to `names`.
TracedThread trace_rank(size_t rank, const schedule::SimulatedRank& simulated,
                        std::deque<std::string>& names) {
  constexpr double kNanoseconds = 1e9;
  TracedThread row = {.name = fmt::format("rank {}", rank)};
  for (const schedule::SimulatedSpan& span : simulated.spans) {
    names.push_back(span_name(span));
    const bool is_action = span.kind == schedule::SimulatedSpan::Kind::kAction;
    row.spans.push_back({.name = names.back(),
                         .key = is_action ? "micro-batch" : "",
                         .number = span.action.microbatch,
                         .start_ns = std::llround(span.start_s * kNanoseconds),
                         .end_ns = std::llround(span.end_s * kNanoseconds)});
  }
  return row;
}

}  // namespace

void write_simulated_trace(const std::string& path, const schedule::Simulation& simulation) {
  std::deque<std::string> names;
  std::vector<TracedThread> rows;
  for (size_t rank = 0; rank < simulation.ranks.size(); ++rank)
    rows.push_back(trace_rank(rank, simulation.ranks[rank], names));
  write_file_atomic(path, report::trace_json(rows));
}

std::string simulated_table(const engine::RunPlan& plan, const schedule::Simulation& simulation,
                            const Cluster& cluster) {
  const std::vector<int64_t> bytes = plan.bytes_of_ranks();
  const auto data = static_cast<size_t>(plan.pipeline.data);
  const auto pipelines = static_cast<size_t>(plan.pipeline.num_pipelines());
  report::Table table({{"ranks"},
                       {"memory", report::Align::kRight},
                       {"computes", report::Align::kRight},
                       {"sends for", report::Align::kRight}});
  for (size_t rank = 0; rank < bytes.size(); ++rank) {
    double compute = 0.0, transfer = 0.0;
    for (size_t i = rank * data; i < (rank + 1) * data; ++i) {
      compute = std::max(compute, simulation.ranks[i].compute_s);
      transfer = std::max(transfer, simulation.ranks[i].transfer_s);
    }
    table.add_row({pipelines == 1
                       ? std::to_string(rank)
                       : fmt::format("{} to {}", rank * pipelines, (rank + 1) * pipelines - 1),
                   report::format_bytes(bytes[rank]), report::format_seconds(compute),
                   report::format_seconds(transfer)});
  }
  return fmt::format(
      "on {}: a step takes {}, in {:.1f} % of which a rank computes nothing\n{}{}\n",
      cluster.limits.source, report::format_seconds(simulation.seconds),
      100.0 * simulation.bubble_share, table.text(),
      fits_cluster(bytes, cluster)
          ? fmt::format("it fits: a rank has {}", report::format_bytes(cluster.memory))
          : fmt::format("it does not fit: a rank has {}; --memory {} plans within that",
                        report::format_bytes(cluster.memory), cluster.memory));
}

void add_simulated_json(const engine::RunPlan& plan, const schedule::Simulation& simulation,
                        const Cluster& cluster, boost::json::object& line) {
  const std::vector<int64_t> bytes = plan.bytes_of_ranks();
  line["seconds_per_step"] = simulation.seconds;
  line["bubble_share"] = simulation.bubble_share;
  line["fits"] = fits_cluster(bytes, cluster);
  boost::json::array& ranks = line.at("ranks").as_array();
  for (size_t i = 0; i < ranks.size(); ++i) {
    boost::json::object& rank = ranks[i].as_object();
    const size_t of_pipeline = i / static_cast<size_t>(plan.pipeline.num_pipelines());
    const auto data = static_cast<size_t>(plan.pipeline.data);
    const size_t copy = i / static_cast<size_t>(plan.pipeline.expert) % data;
    const schedule::SimulatedRank& simulated = simulation.ranks[of_pipeline * data + copy];
    rank["peak_bytes"] = bytes[of_pipeline];
    rank["compute_seconds"] = simulated.compute_s;
    rank["transfer_seconds"] = simulated.transfer_s;
  }
}

}  // namespace strata::apps
