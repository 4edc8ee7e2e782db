#include "apps/plan_schedule.h"

#include <fmt/format.h>

#include <boost/json.hpp>
#include <cmath>
#include <deque>

#include "base/error.h"
#include "base/files.h"
#include "report/table.h"
#include "report/trace_file.h"
#include "schedule/csv.h"
#include "schedule/generate.h"
#include "schedule/lower.h"
#include "schedule/verify.h"
#include "schedule/walk.h"

namespace strata::apps {
namespace {

namespace json = boost::json;
using schedule::Table;

constexpr int64_t kMaxFileBytes = 64 << 20;

[[noreturn]] void refuse(const std::string& what) {
  throw Error(ErrorCode::kInvalidArgument, what);
}

void check_given(const PlanScheduleOptions& options) {
  if (options.pipeline == 0) refuse("--pipeline: --schedule needs the number of ranks");
  if (options.microbatches == 0) refuse("--microbatches: --schedule needs their number");
}

Table generate(const PlanScheduleOptions& options, schedule::Kind kind) {
  return schedule::generate({.kind = kind,
                             .num_ranks = options.pipeline,
                             .num_microbatches = options.microbatches,
                             .num_chunks = options.chunks == 0 ? 1 : options.chunks,
                             .forwarding_delay = options.forwarding_delay});
}

// The file's table with the numbers that were asked for: what does not fit them is a fault of it.
Table read(const PlanScheduleOptions& options) {
  const std::string& path = options.schedule;
  if (!file_exists(path)) {
    refuse(
        fmt::format("--schedule: got '{}', want gpipe, circular, 1f1b, interleaved, zb1p, or a "
                    "CSV file",
                    path));
  }
  if (options.forwarding_delay != 1) {
    refuse("--forwarding-delay: a file has the transfers that it has; it goes with circular");
  }
  auto [table, left_out] = schedule::read_csv(read_file(path, kMaxFileBytes), path);
  for (const auto& [name, count] : left_out) {
    fmt::print(stderr, "{}: {} {} left out: weights are not sharded and sends do not wait here\n",
               path, count, name);
  }
  if (table.num_ranks() != options.pipeline) {
    refuse(fmt::format("schedule: {}: {} rows, want --pipeline {}", path, table.num_ranks(),
                       options.pipeline));
  }
  if (options.chunks > 0) {
    table.num_stages = options.pipeline * options.chunks;
  } else if (table.num_stages % options.pipeline != 0) {
    refuse(fmt::format("schedule: {}: {} stages do not divide among {} ranks; is one missing?",
                       path, table.num_stages, options.pipeline));
  }
  table.num_microbatches = options.microbatches;
  return table;
}

Table make_table(const PlanScheduleOptions& options) {
  schedule::Kind kind = {};
  if (schedule::parse_kind(options.schedule, kind)) return generate(options, kind);
  return read(options);
}

void check(const PlanScheduleOptions& options, const Table& table) {
  if (const auto fault = schedule::verify(table)) {
    refuse(fmt::format("schedule: {}: {}", options.schedule, to_string(*fault)));
  }
}

int64_t num_actions(const std::vector<schedule::Slot>& row) {
  int64_t count = 0;
  for (const schedule::Slot& slot : row) count += slot.count;
  return count;
}

double bubble_share(const schedule::Walk& walk, const schedule::RankUse& rank) {
  return 1 - rank.busy / walk.time;
}

void print_json(const PlanScheduleOptions& options, const Table& table,
                const schedule::Walk& walk) {
  json::array ranks;
  for (size_t i = 0; i < walk.ranks.size(); ++i) {
    ranks.push_back({{"rank", i},
                     {"actions", num_actions(table.rows[i])},
                     {"bubble_share", bubble_share(walk, walk.ranks[i])},
                     {"peak_live_microbatches", walk.ranks[i].peak_live}});
  }
  const json::object out = {{"schedule", options.schedule},
                            {"pipeline", table.num_ranks()},
                            {"microbatches", table.num_microbatches},
                            {"chunks", table.num_stages / table.num_ranks()},
                            {"time", walk.time},
                            {"bubble_share", walk.bubble_share},
                            {"ranks", ranks}};
  fmt::print("{}\n", json::serialize(out));
}

void print_words(const PlanScheduleOptions& options, const Table& table,
                 const schedule::Walk& walk) {
  fmt::print("schedule {}: {} ranks, {} micro-batches, {} chunks a rank; verified\n",
             options.schedule, table.num_ranks(), table.num_microbatches,
             table.num_stages / table.num_ranks());
  fmt::print("bubbles {:.9f} of all time, where a forward takes 1, a backward 2{}\n",
             walk.bubble_share,
             options.forwarding_delay > 1 ? ", and a transfer as long as what it carries took"
                                          : " and a transfer nothing");
  report::Table rows({{"rank", report::Align::kRight},
                      {"actions", report::Align::kRight},
                      {"bubbles", report::Align::kRight},
                      {"peak of live micro-batches", report::Align::kRight}});
  for (size_t i = 0; i < walk.ranks.size(); ++i) {
    rows.add_row({std::to_string(i), std::to_string(num_actions(table.rows[i])),
                  fmt::format("{:.2f} %", 100 * bubble_share(walk, walk.ranks[i])),
                  std::to_string(walk.ranks[i].peak_live)});
  }
  fmt::print("{}", rows.text());
}

// A row a rank, a forward as one millisecond; gaps are bubbles.
void write_timeline(const std::string& path, const Table& table, const schedule::Walk& walk) {
  constexpr double kNanoseconds = 1e6;
  std::deque<std::string> names;  // where spans find them
  std::vector<TracedThread> rows;
  for (size_t rank = 0; rank < walk.ranks.size(); ++rank) {
    TracedThread& row = rows.emplace_back(TracedThread{.name = fmt::format("rank {}", rank)});
    for (const schedule::TimedSlot& slot : walk.ranks[rank].slots) {
      names.push_back(to_string(table.rows[rank][slot.slot]));
      row.spans.push_back({.name = names.back(),
                           .key = "slot",
                           .number = static_cast<int64_t>(slot.slot),
                           .start_ns = std::llround(slot.start * kNanoseconds),
                           .end_ns = std::llround(slot.end * kNanoseconds)});
    }
  }
  write_file_atomic(path, report::trace_json(rows));
}

}  // namespace

int plan_schedule(const PlanScheduleOptions& options, bool as_json) {
  check_given(options);
  const Table table = make_table(options);
  check(options, table);
  const Table computation = schedule::without_transfers(table);
  Table out = computation;
  if (options.with_transfers) {
    out = schedule::has_transfers(table) ? table
                                         : schedule::lower(computation, options.forwarding_delay);
    check(options, out);
  }
  if (!options.schedule_out.empty()) write_file_atomic(options.schedule_out, write_csv(out));
  const schedule::Walk walk =
      schedule::walk(computation, schedule::ideal_costs(options.forwarding_delay));
  if (!options.trace.empty()) write_timeline(options.trace, computation, walk);
  as_json ? print_json(options, out, walk) : print_words(options, out, walk);
  return 0;
}

}  // namespace strata::apps
